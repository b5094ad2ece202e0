#!/usr/bin/env python3
"""Models and runs of train.py, and the same models as the planner reads them.

usage: models.py

Writes model_*.json, and cluster_*.json with the rates of kernels_*.json, beside this script.
"""
import collections
import dataclasses
import itertools
import json
import pathlib
import statistics

HERE = pathlib.Path(__file__).parent
MEMORY_GIB = {"h100": 79.1, "h200": 139.8}
COLUMNS = ["nodes", "pp", "dp", "tp", "mbs", "layer_boundaries", "sequence", "global_batch"]
COLUMNS += ["recompute", "measured_s", "measured_gib", "reserved_gib"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """gated: as Llama, with RMSNorm, rotary positions and three matrices; else as GPT-2."""

    name: str
    layers: int
    width: int
    heads: int
    fed: int
    vocabulary: int
    gated: bool
    tied: bool = False


Run = collections.namedtuple("Run", "sequence mbs microbatches recompute")

SHAPES = [
    Shape("llama_wide", 8, 4096, 32, 14336, 32000, True),
    Shape("llama_vocabulary", 16, 2048, 32, 8192, 131072, True, tied=True),
    Shape("llama_deep", 24, 1536, 12, 4096, 32000, True),
    Shape("gpt_medium", 24, 1024, 16, 4096, 50304, False, tied=True),
    Shape("gpt_wide", 12, 2560, 20, 10240, 50304, False, tied=True),
    Shape("gpt_huge", 3, 8192, 64, 32768, 50304, False, tied=True),
]
SMALL = [Shape("llama_small", 2, 64, 4, 128, 500, True), Shape("gpt_small", 2, 64, 4, 256, 500, False, True)]


def runs(small=False):
    """Every second run of all lengths, sizes and numbers of microbatches, model after model, in turns."""
    if small:
        return [(shape, Run(64, 2, 2, r)) for shape in SMALL for r in (0, 1)]
    plain = [
        Run(2048, 1, 4, 0), Run(2048, 4, 2, 0), Run(4096, 1, 4, 0), Run(4096, 2, 2, 0),
        Run(8192, 1, 2, 0), Run(2048, 8, 2, 1), Run(4096, 4, 1, 0), Run(1024, 8, 4, 0),
    ]
    return [(shape, run) for run, shape in itertools.product(plain, SHAPES)]


def row(shape, run):
    last = shape.layers + 5
    return [1, 1, 1, 1, run.mbs, f"[0;{last}]", run.sequence, run.mbs * run.microbatches, run.recompute]


def products(small):
    if small:
        return [(64, 64, 64)]
    square = [(size, size, size) for size in (1024, 2048, 4096, 8192, 16384)]
    blocks = [
        (4096 * samples, columns, inner)
        for samples in (1, 4)
        for columns, inner in ((6144, 2048), (16384, 2048), (2048, 8192), (12288, 4096), (28672, 4096),
                               (4096, 14336), (3072, 1024), (1024, 4096))
    ]
    return square + blocks


def attentions(small):
    """Samples, positions, heads, size of a head."""
    if small:
        return [(1, 64, 2, 16)]
    return [(4, 2048, 32, 64), (2, 4096, 32, 64), (1, 8192, 32, 64), (2, 4096, 32, 128),
            (8, 2048, 16, 64), (1, 4096, 32, 128), (4, 2048, 32, 128)]


def norm(shape):
    import torch  # not needed for the planner's files

    return (torch.nn.RMSNorm if shape.gated else torch.nn.LayerNorm)(shape.width)


def described(shape):
    """The model in the planner's form. Norms inside blocks are left out, as they weigh nothing."""
    sequence, width = 4096, shape.width
    block = 4 * width * width + (3 if shape.gated else 2) * width * shape.fed

    def layer(name, kind, parameters, columns, **more):
        fields = {"name": name, "kind": kind, "parameters": parameters} | more
        return fields | {"output_elements_per_sample": columns * sequence}

    layers = [layer("embedding", "embedding", shape.vocabulary * width, width)]
    layers += [layer(f"layer.{i}", "transformer_layer", block, width) for i in range(shape.layers)]
    layers.append(layer("norm", "norm", width, width))
    if shape.tied:
        layers.append(
            layer("head", "lm_head", 0, shape.vocabulary, shares_parameters_with="embedding")
        )
    else:
        layers.append(layer("head", "lm_head", shape.vocabulary * width, shape.vocabulary))
    layers.append(layer("cast", "cast", 0, shape.vocabulary))
    layers.append(layer("loss", "loss", 0, 0))
    return {
        "name": shape.name,
        "global_batch_size": 8,
        "sequence_length": sequence,
        "num_attention_heads": shape.heads,
        "vocabulary_size": shape.vocabulary,
        "gated_feed_forward": shape.gated,
        "precision": "bf16 parameters and activations, fp32 gradients, master weights and Adam",
        "activation_checkpointing": "none",
        "recomputation_stops_early": True,
        "layers": layers,
    }


def write_json(name, value):
    text = json.dumps({key: item for key, item in value.items() if key != "layers"}, indent=1)
    if "layers" in value:
        lines = ",\n".join("  " + json.dumps(item) for item in value["layers"])
        text = text[: text.rindex("\n}")] + f',\n "layers": [\n{lines}\n ]\n}}'
    (HERE / name).write_text(text + "\n")


def cluster(device, kernels):
    """One device whose rates are those of kernels.json, which no run of a model had a part in.

    The price takes 0.75 of a memory's bandwidth, so that it is written as what makes that the rate
    of a copy; a block has 27 operators, forward and backward.
    """
    products = [product["tflops"] for product in kernels["products"] if product["m"] >= 4096]
    hosts = kernels["block_host_us"].values()
    rates = {
        "memory_gib": MEMORY_GIB[device],
        "product_tflops": round(statistics.median(products), 1),
        "memory_gb_per_s": round(kernels["streaming_gb_per_s"]["copy"] / 0.75, 1),
        "launch_us": round(sum(hosts) / len(hosts) / (2 * 27), 1),
    }
    node = {"device": device, "count": 1, "intra_node_gbit_per_s": 3600}
    node |= {"inter_node_gbit_per_s": 3200, "network_cards": 8}
    return {"name": f"one {device}, measured", "devices": {device: rates}, "nodes": [node]}


def main():
    for shape in SHAPES:
        write_json(f"model_{shape.name}.json", described(shape))
    for device in MEMORY_GIB:
        kernels = json.loads((HERE / f"kernels_{device}.json").read_text())
        write_json(f"cluster_{device}.json", cluster(device, kernels))


if __name__ == "__main__":
    main()
