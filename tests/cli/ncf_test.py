#!/usr/bin/env python3
"""usage: ncf_test.py PROGRAM REPOSITORY

Collaborative filtering as a job: generated interactions are the same bytes each time; one process,
pipelines, distributed tables and replicas have the same losses; a resumed run is the uninterrupted
one; weights begin another job; folders and models of another kind are refused.
"""
import json
import os
import subprocess
import tempfile

from jobs import PROGRAM, call, furthest, log_of, prepare_data, train, write_job

USERS, ITEMS, PAIRS, STEPS = 60, 40, 5, 8


def interactions(folder, *options, status=0):
    return call(PROGRAM, "data", "interactions", "--output", folder, "--users", str(USERS),
                "--items", str(ITEMS), "--count", "2000", *options, status=status)


def job_of(parallel=None, **more):
    job = {
        "parallel": {"microbatches": 2, "timeout_seconds": 60, "seed": 3, **(parallel or {})},
        "model": {"name": "ncf", "options": {"factors": 8, "first_layer": 16, "layers": 3}},
        "data": {"directory": "pairs", "sequence": PAIRS, "batch": 16},
        "optimizer": {"learning_rate": 2e-2, "warmup_steps": 2},
        "validation": {"every": STEPS, "batches": 2},
        "steps": STEPS,
    }
    for section, keys in more.items():
        job[section] = {**job.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return job


def run(name, job, ranks=1, *options):
    """Losses of the steps, and that of the last validation."""
    losses = train(name, job, ranks, *options)
    return losses + [record["loss"] for record in log_of(name, "validation")][-1:]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def check_data():
    said = interactions("pairs")
    assert f"{USERS} users, {ITEMS} items, 1900 training and 100 validation" in said, said
    assert "(unchanged)" in interactions("pairs")
    interactions("again")
    interactions("other", "--seed", "2")
    for file in ("train.tokens", "validation.tokens", "interactions.json", "data.json"):
        assert read(f"pairs/{file}") == read(f"again/{file}"), file
    assert read("pairs/train.tokens") != read("other/train.tokens")
    assert "holds other data" in interactions("pairs", "--seed", "2", status=2)
    shown = json.loads(call(PROGRAM, "data", "show", "pairs", "--json"))
    assert shown["tokenizer"] == "interactions.json" and shown["train_tokens"] == 3800, shown
    assert "error" not in shown, shown


def check_layouts():
    alone = run("alone", job_of(checkpoint={"directory": "alone"}))
    assert len(alone) == STEPS + 1 and alone[-2] < alone[0], alone
    pipeline, tables = {"pipeline_parallel_degree": 2}, {"tensor_parallel_degree": 2, "ddp": True}
    for name, parallel, ranks in (
            ("pipeline", pipeline, 2), ("tables", tables, 2), ("replicas", {"ddp": True}, 2),
            ("prescaled", {**tables, "prescaled_batch": True}, 2),
            ("both", {**pipeline, **tables}, 4)):
        apart = furthest(run(name, job_of(parallel), ranks), alone)
        print(f"{name}: {apart:.1e} from one process")
        assert apart < 1e-4, (name, apart)
    # The tables alone are divided: the program says which modules it replaces.
    said = subprocess.run([PROGRAM, "launch", "-n", "2", "--", PROGRAM, "train",
                           write_job("said", job_of(tables)), "--steps", "1"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                          check=True).stdout
    assert said.count("DistributedEmbedding") == 4 and "DistributedLinear" not in said, said
    return alone


def check_resume(alone):
    job = job_of(checkpoint={"directory": "resumed"})
    assert run("resumed", job, 1, "--steps", "3")[:3] == alone[:3]
    assert run("resumed", job, 1, "--resume") == alone
    assert run("seed", job_of({"seed": 4})) != alone
    with open("alone/step_8/config.json", encoding="utf-8") as file:
        config = json.load(file)
    assert config["model_type"] == "ncf" and config["users"] == USERS, config
    begin = job_of(steps=1, validation={"every": 1},
                   optimizer={"type": "sgd", "learning_rate": 1e-12, "warmup_steps": 0})
    begin["model"] = {"init_from": "alone"}
    assert furthest(run("begin", begin)[1:], alone[-1:]) < 2e-6


def check_refusals():
    def refused(job, *words):
        said = call(PROGRAM, "train", write_job("refused", job), "--check", status=2)
        assert all(word in said for word in words), (words, said)
    prepare_data()
    refused(job_of(data={"directory": "data"}), "of the family ncf", "tessera data interactions")
    refused(job_of(model={"name": "gpt-tiny", "options": {}}), "pairs of users and items")
    refused(job_of(model={"options": {"users": 10}}), "users is 10", f"have {USERS}")
    refused(job_of(data={"sequence": 1}), "write a data.sequence of 2 or more")
    unsaid = job_of()
    del unsaid["data"]["sequence"]
    refused(unsaid, "'data.sequence' is missing")
    refused(job_of(sample={"prompt": "The"}), "continues no text")
    said = call(PROGRAM, "train", write_job("good", job_of()), "--check")
    assert f"objective: interactions, {PAIRS} targets" in said, said
    said = call(PROGRAM, "eval", "alone", "--data", "pairs", status=2)
    assert "of the family ncf" in said, said


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    check_data()
    check_resume(check_layouts())
    check_refusals()
print("all as expected")
