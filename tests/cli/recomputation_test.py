#!/usr/bin/env python3
"""usage: recomputation_test.py PROGRAM REPOSITORY

The same job with activation checkpointing, attentions recomputed, activations offloaded, and with
sixteen bits: the losses of the run that keeps its activations.
"""
import os
import tempfile

from curves import losses
from jobs import furthest, log_of, prepare_data

with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    # Dropout too: the second forward draws the numbers of the first.
    noisy = {"name": "gpt-tiny", "options": {"dropout": 0.1}}
    kept = losses("kept", 2, model=noisy)
    assert furthest(kept, losses("plain", 2)) > 1e-4
    for strategy in ("each", "contiguous", "selective"):
        again = furthest(losses(strategy, 2, model=noisy, activation_checkpointing=strategy), kept)
        print(f"activations recomputed, {strategy}, beside kept: {again:.1e}")
        assert again < 1e-6
    attentions = {"checkpoint_attentions": True}
    again = furthest(losses("attentions", 2, attentions, model=noisy), kept)
    print(f"attentions recomputed beside kept: {again:.1e}")
    assert again < 1e-6
    # What is kept rests in a file meanwhile, whose size the log tells.
    offloads = {"offload_activations": True, "activation_loading_horizon": 1}
    moved = losses("offloaded", 2, offloads, model=noisy, activation_checkpointing="each")
    print(f"activations offloaded beside kept: {furthest(moved, kept):.1e}")
    assert furthest(moved, kept) < 1e-6
    steps = log_of("offloaded", "step")
    assert steps and all(sum(step["offload_bytes"]) > 0 for step in steps), steps
    # With fewer bits. Gradients of several microbatches are rounded at other places in a region.
    single = {"microbatches": 1}
    for precision in ("bf16", "fp16"):
        wanted = losses("kept_16", 2, single, model=noisy, precision=precision)
        core = losses("attentions_16", 2, {**single, **attentions}, model=noisy, precision=precision)
        rest = losses("selective_16", 2, single, model=noisy, precision=precision,
                      activation_checkpointing="selective")
        print(f"{precision}: {furthest(core, wanted):.1e}, {furthest(rest, wanted):.1e}")
        assert furthest(core, wanted) < 1e-6 and furthest(rest, wanted) < 1e-6
