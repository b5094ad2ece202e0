#!/usr/bin/env python3
"""Writes the models and the cluster of Karakus et al. 2021, section 7, as the planner reads them.

usage: describe.py FOLDER
"""
import json
import pathlib
import sys

# name: layers, hidden, heads, sequence, vocabulary, batch
MODELS = {
    "gpt3_175b": (96, 12288, 96, 2048, 51200, 2560),
    "roberta_10b": (48, 4096, 32, 512, 50304, 1024),
    "bert_10b": (127, 2560, 40, 512, 30592, 8192),
}


def layer(name, kind, parameters, elements, shared=""):
    row = {"name": name, "kind": kind, "parameters": parameters}
    if shared:
        row["shares_parameters_with"] = shared
    row["output_elements_per_sample"] = elements
    return json.dumps(row)


def model(name):
    layers, hidden, heads, sequence, vocabulary, batch = MODELS[name]
    positions = sequence * hidden
    rows = [layer("embedding", "embedding", (vocabulary + sequence) * hidden, positions)]
    rows += [
        layer(f"layer.{i}", "transformer_layer", 12 * hidden**2, positions)
        for i in range(layers)
    ]
    rows.append(layer("head", "lm_head", 0, sequence * vocabulary, "embedding"))
    head = {
        "name": name,
        "global_batch_size": batch,
        "sequence_length": sequence,
        "num_attention_heads": heads,
        "vocabulary_size": vocabulary,
        "precision": "fp16 parameters and activations, fp32 master weights and Adam",
        "activation_checkpointing": "every layer",
    }
    return with_rows(head, "layers", rows)


def with_rows(head, name, rows):
    text = json.dumps(head, indent=1)[:-2]
    return text + f',\n "{name}": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def cluster(nodes):
    node = json.dumps(
        {
            "device": "a100_40gb",
            "count": 8,
            "intra_node_gbit_per_s": 2400,
            "inter_node_gbit_per_s": 400,
            "network_cards": 4,
        }
    )
    # Two devices share 16 lanes of PCIe 3.0, and eight 1,152 GB of memory.
    device = {"memory_gib": 39.4, "host_gb_per_s": 6.3, "host_memory_gib": 134}
    head = {"name": "p4d.24xlarge", "devices": {"a100_40gb": device}}
    return with_rows(head, "nodes", [node] * nodes)


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in MODELS:
        (folder / f"model_{name}.json").write_text(model(name))
    (folder / "cluster_p4d.json").write_text(cluster(120))


if __name__ == "__main__":
    main()
