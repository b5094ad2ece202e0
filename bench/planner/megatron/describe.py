#!/usr/bin/env python3
"""Writes two published tables of runs of Megatron-LM, their models and their cluster as the planner
reads them. What is assumed beyond the tables stands in README.md.

usage: describe.py FOLDER
"""
import json
import pathlib
import sys

SEQUENCE, VOCABULARY = 2048, 51200
# Narayanan et al. 2021, table 1: layers, width, heads, tensor, pipeline, devices, batch, and the
# Tflop/s that a device achieves.
WEAK_SCALING = {
    "1.7b": (24, 2304, 24, 1, 1, 32, 512, 137),
    "3.6b": (30, 3072, 32, 2, 1, 64, 512, 138),
    "7.5b": (36, 4096, 32, 4, 1, 128, 512, 142),
    "18b": (40, 6144, 48, 8, 1, 256, 1024, 135),
    "39b": (48, 8192, 64, 8, 2, 512, 1536, 138),
    "76b": (60, 10240, 80, 8, 4, 1024, 1792, 140),
    "146b": (80, 12288, 96, 8, 8, 1536, 2304, 148),
    "310b": (96, 16384, 128, 8, 16, 1920, 2160, 155),
    "530b": (105, 20480, 128, 8, 35, 2520, 2520, 163),
    "1t": (128, 25600, 160, 8, 64, 3072, 3072, 163),
}
# Korthikanti et al. 2022, table 5 with full recomputation: tensor, pipeline, stages a rank, devices,
# batch, microbatch, seconds of a step.
SMALL_BATCHES = {
    "22b": (8, 1, 1, 8, 4, 4, 1.42),
    "175b": (8, 8, 3, 64, 64, 1, 18.13),
    "530b": (8, 35, 3, 280, 280, 1, 49.05),
    "1t": (8, 64, 1, 512, 512, 1, 94.42),
}
SHAPES = {name: row[:3] for name, row in WEAK_SCALING.items()} | {
    "22b": (48, 6144, 64),
    "175b": (96, 12288, 96),
}
MICROBATCHES = (1, 2, 4, 8)  # of the first table, which does not say them


def with_rows(head, name, rows):
    text = json.dumps(head, indent=1)[:-2]
    return text + f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]\n}\n"


def model(name):
    count, width, heads = SHAPES[name]
    inner = {"output_elements_per_sample": width * SEQUENCE}
    rows = [{"name": "embedding", "kind": "embedding", "parameters": (VOCABULARY + SEQUENCE) * width} | inner]
    rows += [
        {"name": f"layer.{i}", "kind": "transformer_layer", "parameters": 12 * width**2} | inner
        for i in range(count)
    ]
    rows.append(
        {
            "name": "head",
            "kind": "lm_head",
            "parameters": 0,
            "shares_parameters_with": "embedding",
            "output_elements_per_sample": VOCABULARY * SEQUENCE,
        }
    )
    head = {
        "name": f"gpt {name}",
        "global_batch_size": 512,
        "sequence_length": SEQUENCE,
        "num_attention_heads": heads,
        "vocabulary_size": VOCABULARY,
        "attention": "fused softmax",
        "precision": "fp16 parameters and activations, fp32 master weights and Adam",
        "activation_checkpointing": "every layer",
    }
    return with_rows(head, "layers", rows)


def cluster(nodes):
    node = {
        "device": "a100_80gb",
        "count": 8,
        "intra_node_gbit_per_s": 2400,
        "inter_node_gbit_per_s": 1600,
    }
    return with_rows(
        {"name": "selene", "devices": {"a100_80gb": {"memory_gib": 79.1}}}, "nodes", [node] * nodes
    )


def step_seconds(name, devices, batch, tflops):
    """What a step takes at a rate: the paper counts the operations of a recomputed step."""
    count, width, _ = SHAPES[name]
    operations = 96 * batch * SEQUENCE * count * width**2
    operations *= 1 + SEQUENCE / (6 * width) + VOCABULARY / (16 * count * width)
    return operations / (tflops * 1e12 * devices)


def boundaries(name, stages):
    """Even numbers of layers, the embedding with the first and the head with the last."""
    count = SHAPES[name][0]
    cuts = [1 + count * k // stages for k in range(1, stages)]
    return "[" + ";".join(map(str, [0] + cuts + [count + 2])) + "]"


def table():
    lines = ["table,model,nodes,pp,dp,tp,stages_per_rank,mbs,global_batch,layer_boundaries,measured_s"]

    def add(source, name, tensor, pipeline, turns, devices, batch, microbatch, seconds):
        replicas = devices // tensor // pipeline
        cells = (source, name, devices // 8, pipeline, replicas, tensor, turns, microbatch, batch)
        if batch % (replicas * microbatch) == 0:
            cut = boundaries(name, pipeline * turns)
            lines.append(",".join(map(str, cells)) + f",{cut},{seconds:.3f}")

    for name, (_, _, _, tensor, pipeline, devices, batch, tflops) in WEAK_SCALING.items():
        seconds = step_seconds(name, devices, batch, tflops)
        for microbatch in MICROBATCHES:
            add("weak scaling", name, tensor, pipeline, 1, devices, batch, microbatch, seconds)
    for name, row in SMALL_BATCHES.items():
        add("small batches", name, *row)
    return "\n".join(lines) + "\n"


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in SHAPES:
        (folder / f"model_{name}.json").write_text(model(name))
    (folder / "cluster_selene.json").write_text(cluster(384))
    (folder / "runs.csv").write_text(table())


if __name__ == "__main__":
    main()
