#!/usr/bin/env python3
"""Writes the models and the cluster of Xu et al. 2021, section 5, as the planner reads them.

usage: describe.py FOLDER
"""
import json
import pathlib
import sys

LAYERS = 24
SEQUENCE = 512
# hidden size -> heads that every division of the tables divides
STEMS = {2048: 32, 3072: 192, 3096: 72, 4096: 64, 6120: 72, 8192: 128}


def model(hidden, heads):
    layer = '{"name": "layer.%d", "kind": "transformer_layer", "parameters": %d, ' \
            '"output_elements_per_sample": %d}'
    rows = [layer % (i, 12 * hidden**2, SEQUENCE * hidden) for i in range(LAYERS)]
    head = {
        "name": f"stem of {LAYERS} layers, hidden {hidden}",
        "global_batch_size": 12,
        "sequence_length": SEQUENCE,
        "num_attention_heads": heads,
        "vocabulary_size": 1,
        "precision": "fp32",
        "activation_checkpointing": "every layer",
    }
    return with_rows(head, "layers", rows)


def with_rows(head, name, rows):
    text = json.dumps(head, indent=1)[:-2]
    return text + f',\n "{name}": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def cluster(nodes):
    node = '{"device": "rtx_5000", "count": 4, "intra_node_gbit_per_s": 66, ' \
           '"inter_node_gbit_per_s": 100, "stream_gbit_per_s": 47, "network_latency_us": 100}'
    head = {
        "name": "Frontera, rtx nodes",
        "devices": {"rtx_5000": {"memory_gib": 15.7, "product_tflops": 9.0}},
    }
    return with_rows(head, "nodes", [node] * nodes)


def main():
    folder = pathlib.Path(sys.argv[1])
    for hidden, heads in STEMS.items():
        (folder / f"model_h{hidden}.json").write_text(model(hidden, heads))
    (folder / "cluster_frontera_rtx.json").write_text(cluster(16))


if __name__ == "__main__":
    main()
