#!/usr/bin/env python3
"""usage: numerics_test.py PROGRAM REPOSITORY

The same job in ways that must give the same losses: gradient accumulation, a mesh of ranks,
validation over replicas, activation checkpointing, bf16, fp16 and moments in bytes within a bound,
sharded optimizer state, sharded replicas, delayed
parameters on one rank and on two. Weight decay, which is for matrices alone.
"""
import json
import os
import struct
import tempfile

from jobs import PROGRAM, REPOSITORY, call, furthest, log_of, prepare_data, train, write_job

STEPS = 12


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
    found = train(name, job, ranks)
    assert len(found) == STEPS and found[-1] < 0.97 * found[0], (name, found)
    return found


def cut_and_resumed(name):
    """The losses of a job of `losses` that is ended after seven steps and gone on from."""
    with open(name + ".json", encoding="utf-8") as file:
        job = {**json.load(file), "checkpoint": {"directory": name + "_cut"}}
    train(name + "_cut", job, 2, "--steps", "7")
    return train(name + "_cut", job, 2, "--resume")


def validated(name):
    """The losses of validation in a run's log."""
    return [record["loss"] for record in log_of(name, "validation")]


def tensors_after_a_step(name, **optimizer):
    """Shape and bytes of each tensor that a job with this optimizer has after one step."""
    job = {
        "parallel": {"pipeline_parallel_degree": 2, "microbatches": 2, "timeout_seconds": 60,
                     "seed": 3},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.0}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 0, **optimizer},
        "checkpoint": {"directory": name, "full": True},
        "steps": 1,
    }
    call(PROGRAM, "launch", "-n", "2", "--", PROGRAM, "train", write_job(name, job))
    with open(name + "/step_1/model.safetensors", "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    return {name: (entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    plain = losses("plain", 2)

    halves = furthest(losses("halves", 2, data={"batch": 4}, accumulation=2), plain)
    print(f"two half batches beside one: {halves:.1e}")
    assert halves < 1e-4

    # Four ranks as a mesh, as the quick start's example divides its model.
    with open(REPOSITORY + "/examples/quickstart_2d.json", encoding="utf-8") as file:
        example = json.load(file)["parallel"]
    assert example["tensor_parallel_kind"] == "2d" and example["tensor_parallel_degree"] == 4
    on_mesh = furthest(losses("mesh", 4, example), plain)
    print(f"a mesh of 2 x 2 ranks beside a pipeline: {on_mesh:.1e}")
    assert on_mesh < 1e-4

    # Replicas validate with a share of each batch, and the loss is that of all of it.
    validation = {"validation": {"every": 5, "batches": 3}}
    losses("validated", 2, **validation)
    losses("validated_apart", 2, {"pipeline_parallel_degree": 1, "ddp": True}, **validation)
    wanted = validated("validated")
    apart = furthest(validated("validated_apart"), wanted)
    print(f"validation over replicas beside one: {apart:.1e}")
    assert len(wanted) == 3 and len(validated("validated_apart")) == 3 and apart < 1e-5

    # Dropout too: the second forward draws the numbers of the first.
    noisy = {"name": "gpt-tiny", "options": {"dropout": 0.1}}
    kept = losses("kept", 2, model=noisy)
    assert furthest(kept, plain) > 1e-4
    for strategy in ("each", "contiguous", "selective"):
        again = furthest(losses(strategy, 2, model=noisy, activation_checkpointing=strategy), kept)
        print(f"activations recomputed, {strategy}, beside kept: {again:.1e}")
        assert again < 1e-6
    attentions = {"checkpoint_attentions": True}
    again = furthest(losses("attentions", 2, attentions, model=noisy), kept)
    print(f"attentions recomputed beside kept: {again:.1e}")
    assert again < 1e-6
    # With fewer bits. Gradients of several microbatches are rounded at other places in a region.
    single = {"microbatches": 1}
    for precision in ("bf16", "fp16"):
        wanted = losses("kept_16", 2, single, model=noisy, precision=precision)
        core = losses("attentions_16", 2, {**single, **attentions}, model=noisy, precision=precision)
        rest = losses("selective_16", 2, single, model=noisy, precision=precision,
                      activation_checkpointing="selective")
        print(f"{precision}: {furthest(core, wanted):.1e}, {furthest(rest, wanted):.1e}")
        assert furthest(core, wanted) < 1e-6 and furthest(rest, wanted) < 1e-6
    # What is kept rests in a file meanwhile, whose size the log tells.
    offloads = {"offload_activations": True, "activation_loading_horizon": 1}
    moved = losses("offloaded", 2, offloads, model=noisy, activation_checkpointing="each")
    print(f"activations offloaded beside kept: {furthest(moved, kept):.1e}")
    assert furthest(moved, kept) < 1e-6
    steps = log_of("offloaded", "step")
    assert steps and all(sum(step["offload_bytes"]) > 0 for step in steps), steps

    # One bf16 number is rounded by up to 2e-3; a loss is a mean over many. It was 2.5e-4.
    rounded = furthest(losses("bf16", 2, precision="bf16"), plain)
    print(f"bf16 with f32 masters beside f32: {rounded:.1e}")
    assert 1e-6 < rounded < 2e-3
    in_f32 = furthest(
        losses("sums", 2, {"fp32_grad_accumulation": True}, precision="bf16"), plain)
    print(f"bf16 with gradients added in f32 beside f32: {in_f32:.1e}")
    assert 1e-6 < in_f32 < 2e-3

    # Replicas that divide the optimizer's state: the same sums in the same order.
    replicas = {"pipeline_parallel_degree": 1, "ddp": True}
    shared = {**replicas, "shard_optimizer_state": True}
    for precision in ("f32", "bf16", "fp16"):
        wanted = losses("replicas", 2, replicas, precision=precision)
        apart = furthest(losses("shared", 2, shared, precision=precision), wanted)
        print(f"sharded optimizer state, {precision}, beside all of it everywhere: {apart:.1e}")
        assert apart < (1e-6 if precision == "f32" else 1e-4)
    # f16 rounds eight times finer than bf16. The first scale overflows, so updates are left out,
    # and the rest of the run is as far behind; one replica's log says what its run did.
    finer = furthest(losses("fp16", 2, precision="fp16"), plain)
    print(f"fp16 with a loss scale that fits beside f32: {finer:.1e}")
    assert 1e-7 < finer < 1e-3
    tensor = {"pipeline_parallel_degree": 1, "tensor_parallel_degree": 2, "ddp": True,
              "prescaled_batch": True}
    divided = furthest(losses("fp16_tensor", 2, tensor, precision="fp16"), plain)
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

    # Moments in bytes, and bf16 without masters: rounded otherwise than f32, alike on every layout.
    in_bytes = {"type": "adamw_8bit", "learning_rate": 2e-3, "warmup_steps": 2}
    eight_bits = furthest(losses("eight_bits", 2, optimizer=in_bytes), plain)
    print(f"moments in bytes beside f32: {eight_bits:.1e}")
    assert 1e-7 < eight_bits < 1e-2
    in_bytes["stochastic_rounding"] = True
    small = {"optimizer": in_bytes, "precision": "bf16"}
    whole = losses("no_masters", 2, cut, **small)
    print(f"the same in bf16 without masters: {furthest(whole, plain):.1e}")
    assert 1e-6 < furthest(whole, plain) < 1e-2
    assert cut_and_resumed("no_masters") == whole, whole
    wanted = losses("small_replicas", 2, replicas, **small)
    assert losses("small_shared", 2, shared, **small) == wanted, wanted
    apart = furthest(losses("small_tensor", 2, tensor, **small), plain)
    print(f"the same on two tensor-parallel ranks: {apart:.1e}")
    assert 1e-6 < apart < 1e-2
    # Two replicas with copies of everything, and with a half each of parameters, gradients and state.
    shards = {**replicas, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1000}
    apart = furthest(losses("small_sharded", 2, shards, **small), wanted)
    print(f"bf16 without masters, sharded replicas beside copies: {apart:.1e}")
    assert apart < 2e-3
    for precision in ("f32", "fp16"):
        copied = losses("copied", 2, replicas, precision=precision)
        sharded = losses("sharded", 2, shards, precision=precision, activation_checkpointing="each")
        apart = furthest(sharded, copied)
        print(f"sharded replicas beside copies, {precision}: {apart:.1e}")
        assert apart < 1e-4

    # Updates by norms of whole parameters: those of one rank on every division.
    for kind, rate in (("lamb", 2e-2), ("novograd", 2e-1)):
        by_norms = {"optimizer": {"type": kind, "learning_rate": rate, "warmup_steps": 2}}
        one = losses(f"{kind}_one", 1, **by_norms)
        for layout, keys in (("pipeline", {}), ("tensor", tensor), ("shared", shared),
                             ("shards", shards)):
            apart = furthest(losses(f"{kind}_{layout}", 2, keys, **by_norms), one)
            print(f"{kind}, {layout} beside one rank: {apart:.1e}")
            assert apart < 1e-3

    # The values of the whole on any division, drawn in another way than without
    # the delay (docs/adr/0011-delayed-parameters.md).
    delayed = {"delayed_parameter_initialization": True}
    alone = losses("delayed_alone", 1, delayed)
    divided = losses("delayed_divided", 2, delayed)
    print(f"delayed parameters on two ranks beside one: {furthest(divided, alone):.1e}")
    assert furthest(divided, alone) < 1e-5
    assert furthest(alone, plain) > 1e-4, "then the decision has changed: promise equality"

    # Norms and biases are not decayed; all else is, also where another rank holds it.
    without = tensors_after_a_step("without", weight_decay=0.0)
    decayed = tensors_after_a_step("decayed", weight_decay=0.5)
    assert without.keys() == decayed.keys()
    kinds = {1: 0, 2: 0}
    for name, (shape, values) in without.items():
        kinds[len(shape)] += 1
        assert (values == decayed[name][1]) == (len(shape) == 1), (name, shape)
    assert kinds[1] > kinds[2] > 4, kinds

    # The whole model's update has the length that `clip_norm` allows, times the learning rate: two
    # updates in one direction, so what they differ by has too.
    sgd = {"type": "sgd", "momentum": 0.0, "weight_decay": 0.0, "learning_rate": 10.0}
    short, long = (tensors_after_a_step(f"clipped_{norm}", clip_norm=norm, **sgd)
                   for norm in (0.1, 0.2))
    square = sum((a - b) ** 2 for name, (_, values) in short.items()
                 for (a,), (b,) in zip(struct.iter_unpack("<f", values),
                                       struct.iter_unpack("<f", long[name][1])))
    print(f"updates clipped to 1 and 2 differ by {square ** 0.5:.4f}")
    assert abs(square ** 0.5 - 1) < 1e-3
