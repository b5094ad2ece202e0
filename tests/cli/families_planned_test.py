#!/usr/bin/env python3
"""usage: families_planned_test.py PROGRAM REPOSITORY

Every family of models that the program trains is planned, also those whose forward of one sample
runs other operators than that of two (BERT with both heads, T5). Batches are large enough that
operators take longer than their launches.
"""
import json
import os
import tempfile

from jobs import PROGRAM, call

CLUSTER = {
    "name": "two hosts",
    "devices": {"a100": {"memory_gib": 80, "memory_gb_per_s": 2039}},
    "nodes": [{"device": "a100", "count": 4, "intra_node_gbit_per_s": 4800,
               "inter_node_gbit_per_s": 200}] * 2,
}


def seconds_of(model, batch):
    said = call(PROGRAM, "plan", "--model", model, "--global-batch-size", str(batch),
                "--cluster-file", "cluster.json", "--json")
    return json.loads(said)["strategies"][0]["seconds"]


def main():
    with open("cluster.json", "w", encoding="utf-8") as file:
        json.dump(CLUSTER, file)
    listed = call(PROGRAM, "partition", "--list").splitlines()
    presets = [line.split()[0] for line in listed if line.split() and "-tiny" in line.split()[0]]
    assert {"gpt-tiny", "bert-tiny", "t5-tiny"} <= set(presets), presets
    for model in presets:
        once, eightfold = seconds_of(model, 4096), seconds_of(model, 32768)
        print(f"{model}: {once:.4f} s, eight times the batch {eightfold:.4f} s")
        assert 1.5 * once < eightfold < 8.5 * once, model


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    main()
    os.chdir("/")
