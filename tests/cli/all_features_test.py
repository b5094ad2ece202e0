#!/usr/bin/env python3
"""usage: all_features_test.py PROGRAM REPOSITORY

The GPT-3 of Karakus et al. 2021, section 7.2, in small: every feature of that run at once, on 8
ranks. A pipeline in fast mode, tensor parallelism with a prescaled batch, replicas, activation
checkpointing and offloading, sharded optimizer state, many microbatches, 16 bits. It has the losses
of one rank with the same precision, and a run that is ended in between and gone on from ends in the
same bits.
"""
import os
import re
import tempfile

from jobs import PROGRAM, call, furthest, log_of, prepare_data, write_job

STEPS = 10
LAYERS = 4
FEATURES = {
    "pipeline_parallel_degree": 2, "microbatches": 8,
    "static_mode": True, "static_mode_steps": 2, "fast_mode": True,
    "tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True,
    "shard_optimizer_state": True, "offload_activations": True, "activation_loading_horizon": 2,
    "reproducible": True,
}
# Of a loss. Both sides round products, sums of gradients and replicas at other places: f16 to
# 11 bits, bf16 to 8.
BOUNDS = {"fp16": 2e-4, "bf16": 2e-3}


def job_of(parallel, precision, checkpoint=None):
    job = {
        "parallel": {"seed": 3, "timeout_seconds": 60, **parallel},
        "model": {"name": "gpt3-175b", "options": {"n_layer": LAYERS, "n_embd": 64, "n_head": 4}},
        "data": {"directory": "data", "sequence": 32, "batch": 32},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "precision": precision,
        # The first scale would overflow, and each overflow leaves an update out.
        **({"loss_scale": {"init_scale": 1024}} if precision == "fp16" else {}),
        "steps": STEPS, "log_every": 1,
    }
    if "pipeline_parallel_degree" in parallel:
        job["activation_checkpointing"] = "each"
    if checkpoint:
        job["checkpoint"] = {"directory": checkpoint}
    return job


def run(name, job, ranks, *options):
    """What a run prints, and the loss of each of its steps."""
    text = call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", write_job(name, job),
                "--log", name + ".jsonl", *options)
    return text, [record["loss"] for record in log_of(name, "step")]


def state_of(text):
    """The hash of the state that a run has saved last."""
    return re.findall(r"saved .*, state (\S+)", text)[-1]


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    for precision, bound in BOUNDS.items():
        _, one = run("one", job_of({}, precision), 1)
        text, all_at_once = run("all", job_of(FEATURES, precision, precision), 8)
        assert len(one) == len(all_at_once) == STEPS and one[-1] < 0.97 * one[0], (one, all_at_once)
        apart = furthest(all_at_once, one)
        print(f"{precision}: all features on 8 ranks beside one rank: {apart:.1e}")
        assert apart < bound, (one, all_at_once)
        assert "on 8 ranks: 2 pipeline x 2 tensor x 2 replicas, 8 microbatches" in text, text
        for record in log_of("all", "step"):
            assert min(record["offload_bytes"]) > 0, record

        cut = precision + "_cut"
        run("cut", job_of(FEATURES, precision, cut), 8, "--steps", "6")
        # It goes on with the log of the first part.
        resumed_text, resumed = run("cut", job_of(FEATURES, precision, cut), 8, "--resume")
        assert resumed == all_at_once, (resumed, all_at_once)
        assert state_of(resumed_text) == state_of(text), (resumed_text, text)
