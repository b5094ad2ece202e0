#!/usr/bin/env python3
"""Writes published tables of runs, their models and their clusters in the planner's own forms.

usage: convert.py LLAMA.csv MPT.csv

LLAMA.csv is the table of "The Ultra-Scale Playbook" (MIT), MPT.csv the throughput tables of
llm-foundry (Apache-2.0), both with their own column names. The files go beside this script.
What is assumed beyond the tables stands in README.md.
"""
import csv
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
VOCABULARY = {"llama": 131072, "mpt": 50368}
LLAMA = {  # layers, width, heads, feed-forward width, whether embedding and head are one
    "1B": (16, 2048, 32, 8192, True),
    "8B": (32, 4096, 32, 14336, False),
}
MPT = {  # layers, width, heads
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
GATED_MATRICES = 3
SEQUENCE = {"llama": 4096, "mpt": 2048}


def write_json(name, value):
    """One line a layer or node, so that a file of 64 nodes stays readable."""
    lists = {key: value.pop(key) for key in ("layers", "nodes") if key in value}
    text = json.dumps(value, indent=1)
    for key, items in lists.items():
        lines = ",\n".join("  " + json.dumps(item) for item in items)
        text = text[: text.rindex("\n}")] + f',\n "{key}": [\n{lines}\n ]\n}}'
    (HERE / name).write_text(text + "\n")


def layer(name, kind, parameters, width, sequence, shares=None):
    fields = {"name": name, "kind": kind, "parameters": parameters}
    if shares:
        fields["shares_parameters_with"] = shares
    return fields | {"output_elements_per_sample": width * sequence}


def model(family, size, count, width, heads, block, tied):
    """A model in the planner's form; `block` is the number of parameters of a layer."""
    sequence, vocabulary = SEQUENCE[family], VOCABULARY[family]
    embedding = vocabulary * width + (sequence * width if family == "mpt" else 0)
    layers = [layer("embedding", "embedding", embedding, width, sequence)]
    layers += [
        layer(f"layer.{i}", "transformer_layer", block, width, sequence) for i in range(count)
    ]
    layers.append(layer("norm", "norm", width, width, sequence))
    head = 0 if tied else vocabulary * width
    layers.append(
        layer("head", "lm_head", head, vocabulary, sequence, "embedding" if tied else None)
    )
    if family == "llama":
        layers.append(layer("cast", "cast", 0, vocabulary, sequence))
        layers.append(layer("loss", "loss", 0, 0, sequence))
    else:
        layers.append(layer("loss", "fused_loss", 0, 0, sequence))
        layers += [layer(f"metric.{i}", "metric", 0, 0, sequence) for i in range(2)]
    return {
        "name": f"{family} {size}",
        "global_batch_size": 256,
        "sequence_length": sequence,
        "num_attention_heads": heads,
        "vocabulary_size": vocabulary,
        "gated_feed_forward": family == "llama",
        "precision": "bf16 parameters and activations, fp32 gradients, master weights and Adam",
        "activation_checkpointing": "none",
        "layers": layers,
    }


def cluster(name, device, kind, nodes, inside, network, **more):
    """Nodes of 8 devices; bandwidths in Gbit/s, of a device inside and of a node's network."""
    node_more = {"network_cards": 8} | more.pop("node", {})
    node = {
        "device": device,
        "count": 8,
        "intra_node_gbit_per_s": inside,
        "inter_node_gbit_per_s": network,
    }
    return {"name": name} | more | {"devices": {device: kind}, "nodes": [node | node_more] * nodes}


def balanced(costs, stages):
    """Where nanotron cuts: a stage ends with the block that passes its share of the cost."""
    total, passed, stage = sum(costs), 0, 0
    ends = [0] * stages
    for i, cost in enumerate(costs):
        passed += cost
        ends[stage] = i + 1
        if stage + 1 < stages and passed > total * (stage + 1) / stages:
            stage += 1
    for k in range(1, stages):
        ends[k] = max(ends[k], ends[k - 1])
    return [0] + ends


def llama_rows(table, size):
    count, width, _, fed, _ = LLAMA[size]
    block = 4 * width * width + GATED_MATRICES * width * fed
    costs = [0] + [block] * count + [0, VOCABULARY["llama"] * width, 0, 0]
    rows = []
    for run in table:
        if run["model"] != size:
            continue
        batch = int(run["MBS"]) * int(run["GradAcc"]) * int(run["DP"])
        if batch != int(run["GBS"]):
            continue  # the row contradicts itself
        done = "nan" not in run["tok/s"]
        seconds = batch * SEQUENCE["llama"] / float(run["tok/s"]) if done else 0
        cuts = ";".join(str(cut) for cut in balanced(costs, int(run["PP"])))
        rows.append(
            [run["Nodes"], run["PP"], run["DP"], run["TP"], run["MBS"], run["ZeRO"], f"[{cuts}]"]
            + ([f"{seconds:.4g}", run["GPU memory"].split()[0]] if done else ["inf", ""])
        )
    return ["nodes", "pp", "dp", "tp", "mbs", "zero", "layer_boundaries"], rows


def mpt_rows(table, size, device):
    rows = []
    for run in table:
        if run["Model"] != size or run["GPU"] != device or "fp8" in run["Precision"]:
            continue
        seconds = int(run["GlobalBatchSize (T)"]) / float(run["Throughput (T/s/GPU)"])
        seconds /= int(run["# GPUs"])
        layers = MPT[size][0] + 6
        rows.append(
            [
                int(run["# GPUs"]) // 8,
                1,
                run["# GPUs"],
                1,
                run["MicroBatchSize"],
                3,
                f"[0;{layers}]",
                run["SeqLen (T)"],
                run["GlobalBatchSize"],
                int(run["Activation Checkpointing"] == "True"),
                int(run["Precision"].startswith("amp")),  # the later runs, with PyTorch 2.1
                f"{seconds:.4g}",
                "",
            ]
        )
    names = ["nodes", "pp", "dp", "tp", "mbs", "zero", "layer_boundaries", "sequence"]
    return names + ["global_batch", "recompute", "recomputation_stops_early"], rows


def write_csv(name, names, rows):
    with open(HERE / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names + ["measured_s", "measured_gib"])
        writer.writerows(rows)


def main():
    llama = list(csv.DictReader(open(sys.argv[1], encoding="utf-8")))
    mpt = list(csv.DictReader(open(sys.argv[2], encoding="utf-8")))
    for size, (count, width, heads, fed, tied) in LLAMA.items():
        block = 4 * width * width + GATED_MATRICES * width * fed
        write_json(
            f"model_llama_{size.lower()}.json",
            model("llama", size, count, width, heads, block, tied),
        )
        write_csv(f"runs_llama_{size.lower()}.csv", *llama_rows(llama, size))
    for size, (count, width, heads) in MPT.items():
        write_json(
            f"model_mpt_{size}.json",
            model("mpt", size, count, width, heads, 12 * width * width, True),
        )
        for device in ("h100_80gb", "a100_80gb", "a100_40gb"):
            names, rows = mpt_rows(mpt, size, device)
            if rows:
                write_csv(f"runs_mpt_{size}_{device}.csv", names, rows)
    busy = {
        "busy_start_us": 175,
        "busy_network_start_us": 230,
        "stalling_group_nodes": 4,
        "stalling_share": 0.015,
        "stall_us": 280000,
    }
    write_json(
        "cluster_h100_efa.json",
        cluster(
            "64 x 8 H100, 8 x 400 Gbit/s EFA",
            "h100",
            {"memory_gib": 79.1, "launch_us": 75},
            64,
            3600,
            3200,
            node={"network_latency_us": 50},
            **busy,
        ),
    )
    # The kernels of 2023 reach 0.25 to 0.4 of an A100's peak (Dao 2023), and on an H100 as much for
    # each multiprocessor and clock, since they do not use its new instructions.
    a100 = (0.25 + 0.4) / 2 * 312
    h100 = a100 * (132 * 1.755) / (108 * 1.41)
    for device, memory, attention, nodes, inside, network in (
        ("h100_80gb", 79.1, h100, 64, 3600, 3200),
        ("a100_80gb", 79.1, a100, 16, 2400, 1600),
        ("a100_40gb", 39.4, a100, 16, 2400, 1600),
    ):
        kind = {"memory_gib": memory, "attention_tflops": round(attention)}
        write_json(
            f"cluster_{device}.json", cluster(device, device, kind, nodes, inside, network)
        )


if __name__ == "__main__":
    main()
