#!/usr/bin/env python3
"""usage: degrees_test.py PROGRAM REPOSITORY

A job of which some layers are divided by tensor parallelism and others stay whole, beside the same
job on one rank: losses and validation, the whole layers on one pipeline rank, on some of both, and
after a resume with other layers whole. What a job may not say.
"""
import os
import tempfile

from jobs import PROGRAM, call, furthest, log_of, prepare_data, train, write_job

STEPS = 6
NAMES = ["transformer.h.0", "transformer.h.1"]


def job_of(parallel, **others):
    return {
        "parallel": {"random": "layout_independent", "seed": 3, "microbatches": 2,
                     "timeout_seconds": 60, **parallel},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.3}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2, "clip_norm": 1.0},
        "validation": {"every": 3, "batches": 2},
        "steps": STEPS,
        **others,
    }


def divided(whole, pipeline=2, **others):
    """A pipeline of stages with two tensor-parallel ranks each."""
    return job_of({"pipeline_parallel_degree": pipeline, "tensor_parallel_degree": 2, "ddp": True,
                   "tensor_parallel_degree_of": {name: 1 for name in whole}}, **others)


def main():
    prepare_data()
    one = train("one", job_of({}), 1)
    validated = [record["loss"] for record in log_of("one", "validation")]
    for name, whole in {"front": NAMES[:1], "both": NAMES}.items():
        losses = train(name, divided(whole), 4)
        apart = furthest(losses, one)
        of_validation = furthest([one["loss"] for one in log_of(name, "validation")], validated)
        print(f"{name} beside one rank: {apart:.1e}, validation {of_validation:.1e}")
        assert apart < 1e-4 and of_validation < 1e-4, name

    half = divided(NAMES[:1], checkpoint={"directory": "saved", "every": 3})
    train("half", {**half, "steps": 3}, 4)
    rest = train("rest", divided(NAMES[1:], checkpoint={"directory": "saved", "every": 3}), 4,
                 "--resume")
    apart = furthest(rest, one[3:])
    print(f"resumed with another layer whole: {apart:.1e}")
    assert apart < 1e-4, (rest, one)

    other = train("other", {**divided(NAMES), "parallel": {**divided(NAMES)["parallel"],
                                                            "seed": 4}}, 4)
    assert furthest(other, one) > 1e-3, "a test that cannot fail"

    said = call(PROGRAM, "launch", "-n", "4", "--", PROGRAM, "train",
                write_job("wrong", divided(["transformer.h.9"])), status=2)
    assert 'tensor_parallel_degree_of, "transformer.h.9": no module of this path' in said, said
    wrong = divided(NAMES)
    wrong["parallel"]["tensor_parallel_degree_of"][NAMES[0]] = 3
    said = call(PROGRAM, "train", write_job("wrong", wrong), "--check", status=2)
    assert "write 1 or 2" in said, said


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    main()
    os.chdir("/")
