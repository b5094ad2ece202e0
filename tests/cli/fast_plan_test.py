#!/usr/bin/env python3
"""usage: fast_plan_test.py PROGRAM REPOSITORY

A plan in fast mode for hosts whose links are slow: the planner is told that the job's steps are
alike, plans a pipeline whose stages send to each other, tries it, and writes a job that trains to
the losses of one rank. Without that word, and for a pipeline of two, it plans no such thing.
"""
import json
import os
import re
import tempfile

from jobs import PROGRAM, call, furthest, prepare_data, train, write_job

STEPS = 9  # five are recorded, and one goes before them

JOB = {
    "parallel": {"random": "layout_independent", "seed": 3, "timeout_seconds": 60},
    "model": {"name": "gpt-tiny", "options": {"n_layer": 8, "dropout": 0.1}},
    "data": {"directory": "data", "sequence": 16, "batch": 16},
    "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2, "clip_norm": 1.0},
    "steps": STEPS,
}


def write_cluster():
    """Four hosts of one rank, each as this machine, with links of 50 Mbit/s, and slower ones where
    this machine is slow or has other work, so that links are what a step waits for."""
    call(PROGRAM, "probe", "--quick", "-o", "cluster.json")
    with open("cluster.json", encoding="utf-8") as file:
        cluster = json.load(file)
    products = {size: seconds for size, seconds, _ in
                cluster["devices"]["cpu"]["product_seconds"]["f32"]}
    slowness = max(1, products[64] / 1e-5)
    node = {**cluster["nodes"][0], "count": 1, "cores": 1, "inter_node_gbit_per_s": 0.05 / slowness}
    cluster["nodes"] = [{**node, "host": host} for host in ("ant", "bee", "cat", "dog")]
    cluster["collectives"] = []
    cluster.pop("links", None)
    with open("cluster.json", "w", encoding="utf-8") as file:
        json.dump(cluster, file)


def planned(*options):
    """What the planner says, and the keys of the strategy that it writes."""
    said = call(PROGRAM, "plan", "--job", "job.json", "--cluster-file", "cluster.json", "-o",
                "planned.json", *options)
    with open("planned.json", encoding="utf-8") as file:
        return said, json.load(file)["parallel"]


def seconds_of_best(said):
    return float(re.search(r"^ +1 +([0-9.]+) ", said, re.MULTILINE).group(1))


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    write_cluster()
    write_job("job", JOB)
    one_rank = train("one", JOB, 1)

    slow, keys = planned()
    assert keys["pipeline_parallel_degree"] == 4, slow
    assert not keys.get("fast_mode") and not keys.get("static_mode"), keys
    assert "--fast-mode: the first takes" in slow, slow

    fast, keys = planned("--fast-mode", "--trials", "1", "--trial-steps", "4", "--keep-trials", "kept")
    print(fast)
    assert keys["fast_mode"] and keys["static_mode"], keys
    assert "static_mode_steps" not in keys, keys  # the trial's own
    assert "  fast mode" in fast and "--fast-mode:" not in fast and "winner: 1" in fast, fast
    # The hint was of this: what the list finds is as fast at least.
    hinted = float(re.search(r"the first takes ([0-9.]+) s", slow).group(1))
    assert seconds_of_best(fast) < hinted + 1e-4, (fast, hinted)
    # What a job is foretold knows the mode too.
    fast_steps, slow_steps = (float(re.search(r"steps of ([0-9.]+) s", call(
        PROGRAM, "train", "--check", "--ranks", "4", "--cluster-file", "cluster.json", "planned.json",
        *options)).group(1)) for options in (
            (), ("--set", "parallel.fast_mode=false", "--set", "parallel.static_mode=false")))
    assert fast_steps < 0.95 * slow_steps, (fast_steps, slow_steps)
    # Between the middle stages a tensor goes over one link and not over two.
    assert seconds_of_best(fast) < 0.9 * seconds_of_best(slow), (fast, slow)
    with open("kept/trial_1.json", encoding="utf-8") as file:
        assert json.load(file)["parallel"]["static_mode_steps"] == 1
    with open("planned.json", encoding="utf-8") as file:
        found = train("fast", json.load(file), 4)
    apart = furthest(found, one_rank)
    print(f"as planned beside one rank: {apart:.1e}")
    assert len(found) == STEPS and apart < 1e-4, (found, one_rank)

    # Prices of a file have a column for it, and the option is refused where it would do nothing.
    row = "4,1,1,1,[0;2;5;7;9]"
    with open("rows.csv", "w", encoding="utf-8") as file:
        file.write(f"pp,dp,tp,mbs,layer_boundaries,fast_mode\n{row},0\n{row},1\n")
    priced = call(PROGRAM, "plan", "--job", "job.json", "--cluster-file", "cluster.json", "--price",
                  "rows.csv").splitlines()
    relayed, direct = (float(line.split(",")[6]) for line in priced[1:])
    assert direct < relayed, priced
    said = call(PROGRAM, "plan", "--job", "job.json", "--cluster-file", "cluster.json", "--price",
                "rows.csv", "--fast-mode", status=2)
    assert "write a column fast_mode" in said, said

    layers = [{"name": str(i), "kind": "block", "parameters": 10, "output_elements_per_sample": 10,
               "forward_seconds_per_sample": {"cpu": {"1": 1e-3}}} for i in range(4)]
    with open("model.json", "w", encoding="utf-8") as file:
        json.dump({"name": "four", "global_batch_size": 4, "precision": "fp32", "layers": layers}, file)
    with open("four.json", "w", encoding="utf-8") as file:
        json.dump({"name": "four", "devices": {"cpu": {"memory_gib": 8}}, "nodes":
                   [{"device": "cpu", "count": 4, "intra_node_gbit_per_s": 1}]}, file)
    described = (PROGRAM, "plan", "--model-file", "model.json", "--cluster-file", "four.json",
                 "--fast-mode")
    assert "add --runnable" in call(*described, status=2)
    assert "fast mode" in call(*described, "--runnable")

    # A job that says it itself is priced so, and keeps it.
    write_job("job", {**JOB, "parallel": {**JOB["parallel"], "static_mode": True, "fast_mode": True}})
    own, keys = planned()
    assert keys["fast_mode"] and seconds_of_best(own) == seconds_of_best(fast), (own, fast)
