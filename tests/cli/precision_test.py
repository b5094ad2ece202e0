#!/usr/bin/env python3
"""usage: precision_test.py PROGRAM REPOSITORY

The same job in bf16, fp16 with overflows, and with moments in bytes: within a bound of f32, and
resumed as if it had not been cut.
"""
import os
import tempfile

from curves import TENSOR, cut_and_resumed, losses
from jobs import furthest, log_of, prepare_data

with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    plain = losses("plain", 2)

    # One bf16 number is rounded by up to 2e-3; a loss is a mean over many. It was 2.5e-4.
    rounded = furthest(losses("bf16", 2, precision="bf16"), plain)
    print(f"bf16 with f32 masters beside f32: {rounded:.1e}")
    assert 1e-6 < rounded < 2e-3
    in_f32 = furthest(
        losses("sums", 2, {"fp32_grad_accumulation": True}, precision="bf16"), plain)
    print(f"bf16 with gradients added in f32 beside f32: {in_f32:.1e}")
    assert 1e-6 < in_f32 < 2e-3

    # f16 rounds eight times finer than bf16. The first scale overflows, so updates are left out,
    # and the rest of the run is as far behind; one replica's log says what its run did.
    finer = furthest(losses("fp16", 2, precision="fp16"), plain)
    print(f"fp16 with a loss scale that fits beside f32: {finer:.1e}")
    assert 1e-7 < finer < 1e-3
    divided = furthest(losses("fp16_tensor", 2, TENSOR, precision="fp16"), plain)
    print(f"the same on two tensor-parallel ranks: {divided:.1e}")
    assert 1e-7 < divided < 1e-3
    high = {"init_scale": 2.0**19, "scale_window": 4, "delayed_shift": 1}
    late = losses("fp16_high", 2, precision="fp16", loss_scale=high, bad_steps={"most_skipped": 0})
    steps = log_of("fp16_high", "step")
    left_out = [record for record in steps if record.get("skipped")]
    assert left_out and all("overflow in fp16" in record["skipped"] for record in left_out), steps
    scale = 2.0**19
    clean = 0
    for record in steps:
        assert record["loss_scale"] == scale, (record, scale)
        if record.get("skipped"):
            scale, clean = scale / 2, 0
        else:
            clean += 1
            scale *= 2 if clean % 4 == 0 else 1
    print(f"fp16 with {len(left_out)} updates left out: loss {late[-1]:.3f}, f32 {plain[-1]:.3f}")
    assert abs(late[-1] - plain[-1]) < 0.08 * plain[-1]  # three of twelve updates; it was 0.044

    # A run that is cut and taken up again, between overflows, is the one that was not.
    cut = {"reproducible": True, "pipeline_parallel_degree": 2}
    whole = losses("fp16_whole", 2, cut, precision="fp16", loss_scale=high)
    assert cut_and_resumed("fp16_whole") == whole, whole

    # Moments in bytes, and bf16 without masters: rounded otherwise than f32.
    in_bytes = {"type": "adamw_8bit", "learning_rate": 2e-3, "warmup_steps": 2}
    eight_bits = furthest(losses("eight_bits", 2, optimizer=in_bytes), plain)
    print(f"moments in bytes beside f32: {eight_bits:.1e}")
    assert 1e-7 < eight_bits < 1e-2
    in_bytes["stochastic_rounding"] = True
    whole = losses("no_masters", 2, cut, optimizer=in_bytes, precision="bf16")
    print(f"the same in bf16 without masters: {furthest(whole, plain):.1e}")
    assert 1e-6 < furthest(whole, plain) < 1e-2
    assert cut_and_resumed("no_masters") == whole, whole
