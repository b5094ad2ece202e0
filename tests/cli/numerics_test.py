#!/usr/bin/env python3
"""usage: numerics_test.py PROGRAM REPOSITORY

The same job in ways that must give the same losses: gradient accumulation, a mesh of ranks,
validation over replicas, delayed parameters on one rank and on two. Weight decay, which is for
matrices alone, and the length of a clipped update.
"""
import json
import os
import struct
import tempfile

from curves import REPLICAS, job_of, losses
from jobs import PROGRAM, REPOSITORY, call, furthest, log_of, prepare_data, write_job


def validated(name):
    """The losses of validation in a run's log."""
    return [record["loss"] for record in log_of(name, "validation")]


def tensors_after_a_step(name, **optimizer):
    """Shape and bytes of each tensor that a job with this optimizer has after one step."""
    job = job_of(2, optimizer={"learning_rate": 2e-3, "warmup_steps": 0, **optimizer},
                 checkpoint={"directory": name, "full": True}, steps=1)
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
    losses("validated_apart", 2, REPLICAS, **validation)
    wanted = validated("validated")
    apart = furthest(validated("validated_apart"), wanted)
    print(f"validation over replicas beside one: {apart:.1e}")
    assert len(wanted) == 3 and len(validated("validated_apart")) == 3 and apart < 1e-5

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
