#!/usr/bin/env python3
"""usage: sharding_test.py PROGRAM REPOSITORY

The same job over replicas that share out the optimizer's state or all parameters, in every
precision and with updates by norms of whole parameters: the losses of replicas with copies.
"""
import os
import tempfile

from curves import REPLICAS, SHARDED, SHARED_STATE, TENSOR, losses
from jobs import furthest, prepare_data

with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    # Replicas that divide the optimizer's state: the same sums in the same order.
    for precision in ("f32", "bf16", "fp16"):
        wanted = losses("replicas", 2, REPLICAS, precision=precision)
        apart = furthest(losses("shared", 2, SHARED_STATE, precision=precision), wanted)
        print(f"sharded optimizer state, {precision}, beside all of it everywhere: {apart:.1e}")
        assert apart < (1e-6 if precision == "f32" else 1e-4)

    # Moments in bytes in bf16 without masters: alike on every layout.
    in_bytes = {"type": "adamw_8bit", "learning_rate": 2e-3, "warmup_steps": 2,
                "stochastic_rounding": True}
    small = {"optimizer": in_bytes, "precision": "bf16"}
    plain = losses("plain", 2)
    wanted = losses("small_replicas", 2, REPLICAS, **small)
    assert losses("small_shared", 2, SHARED_STATE, **small) == wanted, wanted
    apart = furthest(losses("small_tensor", 2, TENSOR, **small), plain)
    print(f"moments in bytes without masters on two tensor-parallel ranks: {apart:.1e}")
    assert 1e-6 < apart < 1e-2
    # Two replicas with copies of everything, and with a half each of parameters, gradients and state.
    apart = furthest(losses("small_sharded", 2, SHARDED, **small), wanted)
    print(f"bf16 without masters, sharded replicas beside copies: {apart:.1e}")
    assert apart < 2e-3
    for precision in ("f32", "fp16"):
        copied = losses("copied", 2, REPLICAS, precision=precision)
        sharded = losses("sharded", 2, SHARDED, precision=precision, activation_checkpointing="each")
        apart = furthest(sharded, copied)
        print(f"sharded replicas beside copies, {precision}: {apart:.1e}")
        assert apart < 1e-4

    # Updates by norms of whole parameters: those of one rank on every division.
    for kind, rate in (("lamb", 2e-2), ("novograd", 2e-1)):
        by_norms = {"optimizer": {"type": kind, "learning_rate": rate, "warmup_steps": 2}}
        one = losses(f"{kind}_one", 1, **by_norms)
        for layout, keys in (("pipeline", {}), ("tensor", TENSOR), ("shared", SHARED_STATE),
                             ("shards", SHARDED)):
            apart = furthest(losses(f"{kind}_{layout}", 2, keys, **by_norms), one)
            print(f"{kind}, {layout} beside one rank: {apart:.1e}")
            assert apart < 1e-3
