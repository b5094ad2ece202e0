#!/usr/bin/env python3
"""usage: shares_test.py PROGRAM REPOSITORY first|rest

Replicas of a job that take unlike numbers of samples beside the same job on one rank: losses,
validation, gradient norms and tokens a second's count, with pipelines, tensor parallelism, sharded
state and parameters, accumulation and dropout, and after a resume under another layout. What a job
may not say. A plan for unlike hosts that gives them.
"""
import json
import os
import tempfile

from jobs import PART, PROGRAM, call, furthest, log_of, prepare_data, train, write_job

STEPS = 6
LAYOUTS = {
    "first": {
        "two": (2, {"replica_samples": [10, 2]}),
        "sharded": (2, {"replica_samples": [8, 4], "sharded_data_parallel_degree": 2,
                        "sdp_param_persistence_threshold": 1000}),
        "static": (4, {"replica_samples": [8, 4], "pipeline_parallel_degree": 2,
                       "static_mode": True, "static_mode_steps": 1, "fast_mode": True}),
        "tensor": (4, {"replica_samples": [8, 4], "tensor_parallel_degree": 2}),
    },
    "rest": {
        "state": (2, {"replica_samples": [4, 8], "shard_optimizer_state": True}),
        "four": (4, {"replica_samples": [6, 2, 2, 2]}),
        "pipelines": (4, {"replica_samples": [8, 4], "pipeline_parallel_degree": 2}),
        "prescaled": (4, {"replica_samples": [10, 2], "tensor_parallel_degree": 2,
                          "prescaled_batch": True}),
        "mesh": (4, {"replica_samples": [4, 8], "tensor_parallel_degree": 2,
                     "tensor_parallel_kind": "2d"}),
    },
}


def job_of(parallel, **others):
    return {
        "parallel": {"random": "layout_independent", "seed": 3, "ddp": True, "microbatches": 2,
                     "timeout_seconds": 60, **parallel},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.3}},
        "data": {"directory": "data", "sequence": 16, "batch": 12},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2, "clip_norm": 1.0},
        "validation": {"every": 2, "batches": 2},  # whose steps count for masks
        "steps": STEPS,
        **others,
    }


def refused(job, ranks, *wanted):
    said = call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train",
                write_job("refused", job), status=2)
    for text in wanted:
        assert text in said, (text, said)


def slowed(value, times, seconds=False):
    """A measured device that takes so many times as long. Rows are sizes with two times."""
    if isinstance(value, dict):
        return {key: entry / times if key.endswith("gb_per_s") else
                slowed(entry, times, seconds or key.endswith("_seconds"))
                for key, entry in value.items()}
    if isinstance(value, list) and len(value) == 3 and not isinstance(value[0], list):
        return [value[0], times * value[1], times * value[2]] if seconds else value
    if isinstance(value, list):
        return [slowed(entry, times, seconds) for entry in value]
    return times * value if seconds and isinstance(value, (int, float)) else value


def check_layouts(layouts, one):
    validated = [record["loss"] for record in log_of("one", "validation")]
    norms = [record["grad_norm"] for record in log_of("one", "step")]
    for name, (ranks, keys) in layouts.items():
        apart = furthest(train(name, job_of(keys), ranks), one)
        of_validation = furthest(
            [record["loss"] for record in log_of(name, "validation")], validated)
        print(f"{name} beside one rank: {apart:.1e}, validation {of_validation:.1e}")
        assert apart < 1e-4 and of_validation < 1e-4, name
        assert furthest([record["grad_norm"] for record in log_of(name, "step")], norms) < 1e-3
        run = log_of(name, "run")[0]
        assert run["tokens_per_step"] == 12 * 16, run
        rate = [record["tokens_per_second"] * record["step_seconds"]
                for record in log_of(name, "step")]
        assert all(abs(tokens - 12 * 16) < 1e-3 * 12 * 16 for tokens in rate), rate


def check_seed(one):
    # Equal numbers would train something else if they were not counted: the test can fail.
    other = train("other", job_of({"replica_samples": [10, 2], "seed": 4}), 2)
    assert furthest(other, one) > 1e-3, (other, one)


def check_accumulation():
    # Batches that add up, each divided so.
    halves = {"data": {"directory": "data", "sequence": 16, "batch": 6}, "accumulation": 2}
    whole = train("whole", job_of({"microbatches": 1}, **halves), 1)
    parts = train("parts", job_of({"replica_samples": [4, 2]}, **halves), 2)
    print(f"accumulated: {furthest(parts, whole):.1e}")
    assert furthest(parts, whole) < 1e-4


def check_resume(one):
    # A run goes on with other numbers, and without.
    saved = {"checkpoint": {"directory": "saved"}}
    train("begun", job_of({"replica_samples": [10, 2]}, **saved), 2, "--steps", "2")
    train("begun", job_of({"replica_samples": [2, 4, 2, 4]}, **saved), 4, "--steps", "4", "--resume")
    resumed = train("begun", job_of({}, **saved), 2, "--resume")
    print(f"resumed under other numbers: {furthest(resumed, one):.1e}")
    assert furthest(resumed, one) < 1e-4


def check_bits():
    # Sixteen bits lose bits alone.
    for precision in ("bf16", "fp16"):
        wanted = train("equal_16", job_of({}, precision=precision), 2)
        found = train("unlike_16", job_of({"replica_samples": [10, 2]}, precision=precision), 2)
        print(f"{precision}: {furthest(found, wanted):.1e}")
        assert furthest(found, wanted) < 2e-2


def check_refusals():
    refused(job_of({"replica_samples": [8, 8]}), 2,
            "'parallel.replica_samples' adds up to 16 samples, 'data.batch' is 12")
    refused(job_of({"replica_samples": [9, 3]}), 2,
            "replica_samples gives replica 0 9 samples, which 2 microbatches do not divide",
            "write a multiple of 2")
    refused(job_of({"replica_samples": [6, 4, 2]}), 2,
            "replica_samples has 3 numbers, but world size 2 holds 2 replicas")
    refused(job_of({"replica_samples": [12, 0]}), 2, "replica_samples", "integers from 1")
    refused(job_of({"replica_samples": [10, 2], "ddp": False}), 2, "replica_samples", "\"ddp\": true")
    refused(job_of({"replica_samples": [10, 2], "microbatches": 1}, strategy="auto"), 2,
            "'parallel.replica_samples' is what \"strategy\": \"auto\" decides")
    checked = call(PROGRAM, "train", "--check", "--ranks", "2",
                   write_job("checked", job_of({"replica_samples": [10, 2]})))
    assert "is a valid job" in checked, checked


def check_plan(one):
    # Planned for two hosts of which one takes three times as long for everything, and run here.
    call(PROGRAM, "probe", "--quick", "-o", "probed.json")
    with open("probed.json", encoding="utf-8") as file:
        cluster = json.load(file)
    (kind, device), = cluster["devices"].items()
    cluster["devices"] = {kind: device, "slow": slowed(device, 3)}
    node = {**cluster["nodes"][0], "count": 1, "cores": 1, "inter_node_gbit_per_s": 100}
    cluster["nodes"] = [{**node, "host": "ant"}, {**node, "host": "bee", "device": "slow"}]
    cluster["collectives"] = []
    cluster.pop("links", None)
    with open("cluster.json", "w", encoding="utf-8") as file:
        json.dump(cluster, file)
    unplanned = job_of({})
    unplanned["parallel"] = {"random": "layout_independent", "seed": 3, "timeout_seconds": 60}
    said = call(PROGRAM, "plan", "--job", write_job("unplanned", unplanned), "--cluster-file",
                "cluster.json", "-o", "planned.json")
    print(said)
    with open("planned.json", encoding="utf-8") as file:
        planned = json.load(file)
    # A pipeline is nearly as fast; which one is picked is the probe's to say.
    samples = planned["parallel"].get("replica_samples")
    if samples is None:
        print("another strategy is faster on this machine")
    else:
        assert sum(samples) == 12 and max(samples) > 6, (samples, said)
        found = train("planned_run", planned, 2)
        print(f"as planned, {samples}: {furthest(found, one):.1e}")
        assert furthest(found, one) < 1e-4


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    one_rank = train("one", job_of({"microbatches": 1}), 1)
    assert len(one_rank) == STEPS and one_rank[-1] < 0.97 * one_rank[0], one_rank
    (part,) = PART
    check_layouts(LAYOUTS[part], one_rank)
    if part == "first":
        check_seed(one_rank)
        check_resume(one_rank)
        check_refusals()
        check_plan(one_rank)
    else:
        check_accumulation()
        check_bits()
