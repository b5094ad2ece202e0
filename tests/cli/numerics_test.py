#!/usr/bin/env python3
"""usage: numerics_test.py PROGRAM REPOSITORY

The same job in ways that must give the same losses: gradient accumulation, activation
checkpointing, sharded replicas, bf16 within a bound, delayed parameters on one rank and on two.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY = sys.argv[1:]
STEPS = 12


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def losses(name, ranks, parallel=None, data=None, **others):
    """The loss of each step of the job under these changes."""
    job = {
        "parallel": {"pipeline_parallel_degree": ranks, "microbatches": 2, "timeout_seconds": 60,
                     "seed": 3, **(parallel or {})},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.0}},
        "data": {"directory": "data", "sequence": 16, "batch": 8, **(data or {})},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "steps": STEPS,
        **others,
    }
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", name + ".json", "--log",
         name + ".jsonl")
    with open(name + ".jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    found = [record["loss"] for record in records if record["type"] == "step"]
    assert len(found) == STEPS and found[-1] < 0.97 * found[0], (name, found)
    return found


def furthest(got, wanted):
    """Largest relative difference of a step's loss."""
    return max(abs(a - b) / abs(b) for a, b in zip(got, wanted))


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", "400", "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    plain = losses("plain", 2)

    halves = furthest(losses("halves", 2, data={"batch": 4}, accumulation=2), plain)
    print(f"two half batches beside one: {halves:.1e}")
    assert halves < 1e-4

    # Dropout too: the second forward draws the numbers of the first.
    noisy = {"name": "gpt-tiny", "options": {"dropout": 0.1}}
    kept = losses("kept", 2, model=noisy)
    assert furthest(kept, plain) > 1e-4
    for strategy in ("each", "contiguous"):
        again = furthest(losses(strategy, 2, model=noisy, activation_checkpointing=strategy), kept)
        print(f"activations recomputed, {strategy}, beside kept: {again:.1e}")
        assert again < 1e-6

    # One bf16 number is rounded by up to 2e-3; a loss is a mean over many. It was 2.5e-4.
    rounded = furthest(losses("bf16", 2, precision="bf16"), plain)
    print(f"bf16 with f32 masters beside f32: {rounded:.1e}")
    assert 1e-6 < rounded < 2e-3

    # Two replicas with copies of everything, and with a half each of parameters, gradients and state.
    replicas = {"pipeline_parallel_degree": 1, "ddp": True}
    shards = {**replicas, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1000}
    copied = losses("copied", 2, replicas)
    sharded = furthest(losses("sharded", 2, shards, activation_checkpointing="each"), copied)
    print(f"sharded replicas beside copies: {sharded:.1e}")
    assert sharded < 1e-4

    # The values of the whole on any division, drawn in another way than without
    # the delay (docs/adr/0011-delayed-parameters.md).
    delayed = {"delayed_parameter_initialization": True}
    alone = losses("delayed_alone", 1, delayed)
    divided = losses("delayed_divided", 2, delayed)
    print(f"delayed parameters on two ranks beside one: {furthest(divided, alone):.1e}")
    assert furthest(divided, alone) < 1e-5
    assert furthest(alone, plain) > 1e-4, "then the decision has changed: promise equality"
