#!/usr/bin/env python3
"""usage: random_test.py PROGRAM REPOSITORY

A job with dropout and "random": "layout_independent" beside the same job on one rank: pipelines,
fast mode, replicas, sharded replicas, tensor parallelism and a mesh have its losses.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY = sys.argv[1:]
STEPS = 6
LAYOUTS = {
    "pipeline": {"pipeline_parallel_degree": 2, "microbatches": 4},
    "fast": {"pipeline_parallel_degree": 2, "static_mode": True, "static_mode_steps": 1,
             "fast_mode": True},
    "replicas": {},
    "sharded": {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1000},
    "tensor": {"tensor_parallel_degree": 2},
    "memory": {"tensor_parallel_degree": 2, "prescaled_batch": True, "optimize": "memory"},
    "mesh": {"tensor_parallel_degree": 2, "tensor_parallel_kind": "2d"},
}


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def losses(name, ranks, parallel):
    """The loss of each step of the job under these keys."""
    job = {
        "parallel": {"random": "layout_independent", "seed": 3, "ddp": True, "microbatches": 2,
                     "timeout_seconds": 60, **parallel},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.3}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "steps": STEPS,
    }
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", name + ".json", "--log",
         name + ".jsonl")
    with open(name + ".jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    found = [record["loss"] for record in records if record["type"] == "step"]
    assert len(found) == STEPS, (name, found)
    return found


def furthest(found, wanted):
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted))


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", "400", "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    one = losses("one", 1, {"microbatches": 1})
    others = losses("others", 1, {"random": "by_task"})
    assert furthest(others, one) > 1e-3, (others, one)
    for layout, keys in LAYOUTS.items():
        apart = furthest(losses(layout, 2, keys), one)
        print(f"{layout} beside one rank: {apart:.1e}")
        assert apart < 1e-4, layout
