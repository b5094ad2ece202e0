#!/usr/bin/env python3
"""tessera partition on the models of the paper. Usage: partition_test.py PROGRAM ROOT"""
import json
import pathlib
import subprocess
import sys
import tempfile

program, root = sys.argv[1:]


def partition(model, degree, weight):
    command = [program, "partition", "--model", model, "--pipeline-parallel-degree", str(degree),
               "--memory-weight", str(weight), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# T5-11B on 8 devices: figure 9 (alpha 1.0) and figure 10 (alpha 0.2).
for weight, encoder, decoder in ((1.0, 4, 4), (0.2, 3, 5)):
    result = partition("t5-11b", 8, weight)
    used = {"encoder": set(), "decoder": set()}
    for node in result["nodes"]:
        parts = node["path"].split(".")
        if len(parts) == 3 and parts[1] == "block":
            used[parts[0]].add(node["partition"])
    assert len(used["encoder"]) == encoder, (weight, used)
    assert len(used["decoder"]) == decoder, (weight, used)
    assert abs(sum(result["totals"]) - 1) < 1e-6, result["totals"]
    print(weight, "per partition", min(result["totals"]), "to", max(result["totals"]))

# By operations: all of them once, every part with some, in stages that name their parts.
with tempfile.TemporaryDirectory() as folder:
    drawn = pathlib.Path(folder) / "operations.svg"
    done = subprocess.run([program, "partition", "--model", "gpt-tiny", "--pipeline-parallel-degree", "3", "--operations",
                           "--optimize", "speed", "--svg", drawn], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    parts, stages = done.stdout.split("\n\n")[:2]
    counts = [int(line.split()[1]) for line in parts.splitlines()[2:]]
    assert len(counts) == 3 and min(counts) > 0, done.stdout
    assert f"{sum(counts)} operations" in done.stdout.splitlines()[0], done.stdout
    runs = [line.split() for line in stages.splitlines()[1:]]
    for part, count in enumerate(counts):
        assert sum(int(run[2]) for run in runs if int(run[1]) == part) == count, done.stdout
    assert drawn.read_text().count("<rect") == len(runs), "a box for every stage"

# The picture on the first page of the project is the program's.
with tempfile.TemporaryDirectory() as folder:
    drawn = pathlib.Path(folder) / "drawn.svg"
    subprocess.run([program, "partition", "--model", "t5-11b", "--pipeline-parallel-degree", "8", "--memory-weight", "0.2",
                    "--svg", drawn], check=True, capture_output=True, timeout=200)
    assert drawn.read_text() == (pathlib.Path(root) / "docs/figures/partition_t5-11b.svg").read_text(), \
        "docs/figures/partition_t5-11b.svg is not renewed; docs/figures/README.md says how"

for model in ("bert-10b", "roberta-10b", "ncf"):
    result = partition(model, 2, 0.5)
    assert {node["partition"] for node in result["nodes"]} == {0, 1}, model

# Tensor parallelism: blocks are replaced, what shares parameters is not.
done = subprocess.run([program, "partition", "--model", "gpt2", "--pipeline-parallel-degree", "2",
                       "--tensor-parallel-degree", "4"], capture_output=True, text=True, timeout=200)
assert done.returncode == 0, done.stderr
for line in ("transformer.h.* (GptBlock, 12 modules): DistributedTransformerLayer, which does the work of 8 modules inside it",
             "transformer.wpe (Embedding): DistributedEmbedding",
             "transformer.wte (Embedding): not distributed, shares its parameter weight with lm_head.weight"):
    assert "tensor parallelism: " + line in done.stdout, done.stdout

listed = subprocess.run([program, "partition", "--list"], capture_output=True, text=True, check=True)
for model in ("t5-11b", "gpt3-175b", "bert-10b", "roberta-10b", "ncf"):
    assert model in listed.stdout, model
as_json = json.loads(subprocess.run([program, "partition", "--list", "--json"], capture_output=True,
                                    text=True, check=True).stdout)
assert [preset["name"] for preset in as_json] == [line.split()[0] for line in listed.stdout.splitlines()]
assert all(preset["parameters"] > 0 and preset["family"] and preset["description"] for preset in as_json)
wrong = subprocess.run([program, "partition", "--model", "t5-11", "--pipeline-parallel-degree", "2"],
                       capture_output=True, text=True)
assert wrong.returncode != 0 and "t5-11b" in wrong.stderr, wrong.stderr
print("all as expected")
