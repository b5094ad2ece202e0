#!/usr/bin/env python3
"""`tessera simulate` beside pipelines worked out by hand, and what bad input is told.

usage: simulate_test.py PROGRAM
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
LAYERS = 4
BATCH = 8


def described(folder):
    """Four layers of a millisecond forward and two backward, on devices of which no more is known."""
    layers = [
        {
            "name": f"layer.{i}",
            "kind": "block",
            "parameters": 0,
            "output_elements_per_sample": 1,
            "forward_seconds_per_sample": {"device": {"1": 0.001}},
        }
        for i in range(LAYERS)
    ]
    model = {
        "name": "four",
        "global_batch_size": BATCH,
        "precision": "fp32",
        "activation_checkpointing": "none",
        "layers": layers,
    }
    (folder / "model.json").write_text(json.dumps(model))
    for nodes in (1, 2):
        cluster = {
            "name": "devices",
            "devices": {"device": {"memory_gib": 16}},
            "nodes": [{"device": "device", "count": 1, "inter_node_gbit_per_s": 100}] * nodes,
        }
        (folder / f"cluster{nodes}.json").write_text(json.dumps(cluster))


def simulate(folder, nodes, *options, fails=""):
    command = [PROGRAM, "simulate", "--model-file", "model.json"]
    command += ["--cluster-file", f"cluster{nodes}.json", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    if fails:
        assert done.returncode != 0 and fails in done.stderr, (fails, done.stderr)
        return ""
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(text):
    return float(re.search(r"iteration +([0-9.]+) s", text).group(1))


def bubble(text):
    return float(re.search(r"bubble +([0-9.]+) %", text).group(1)) / 100


def near(found, expected, within):
    assert abs(found - expected) <= within, (found, expected)


def check_pipelines(folder):
    one = simulate(folder, 1, "--pp", "1", "--dp", "1")
    near(seconds(one), BATCH * LAYERS * 3e-3, 1e-4)
    near(bubble(one), 0, 1e-3)
    # Two stages: one more task of each kind than microbatches, and a few sends of 20 us.
    two = simulate(
        folder, 2, "--pp", "2", "--dp", "1", "--timeline", "t.json", "--chrome-trace", "c.json"
    )
    near(seconds(two), (BATCH + 1) * 2 * 3e-3, 1e-3)
    near(bubble(two), 1 / (BATCH + 1), 0.02)
    events = json.loads((folder / "t.json").read_text())["events"]
    for category in ("forward", "backward"):
        ran = [event for event in events if event["category"] == category]
        assert len(ran) == 2 * BATCH, (category, len(ran))
    assert json.loads((folder / "c.json").read_text())
    # Replicas halve the batch; without parameters nothing is reduced.
    near(seconds(simulate(folder, 2, "--pp", "1", "--dp", "2")), BATCH / 2 * LAYERS * 3e-3, 1e-3)
    # All of one layer on the first stage: the other one decides.
    uneven = simulate(folder, 2, "--pp", "2", "--dp", "1", "--layer-boundaries", "0;1;4")
    near(seconds(uneven), (BATCH * 3 + 1) * 3e-3, 2e-3)
    # Forwards of both microbatches first, by hand and by name.
    order = "0F 1F 0B 1B"
    custom = simulate(
        folder, 2, "--pp", "2", "--dp", "1", "--mbs", "4", "--custom-schedule", order
    )
    assert "schedule custom" in custom, custom
    near(seconds(custom), 3 * 4 * 2 * 3e-3, 1e-3)
    best = simulate(folder, 2)  # without degrees: the best of a search
    assert seconds(best) <= seconds(two) + 1e-6, best


def check_what_varies(folder):
    slow = simulate(folder, 1, "--pp", "1", "--dp", "1", "--slow-device", "0:2")
    near(seconds(slow), 2 * BATCH * LAYERS * 3e-3, 1e-4)
    text = simulate(
        folder, 1, "--pp", "1", "--dp", "1", "--jitter", "10", "--device-hours", "100",
        "--checkpoint-seconds", "1", "--restart-seconds", "60",
    )
    found = re.search(r"with jitter +([0-9.]+) s, .* from ([0-9.]+) to ([0-9.]+) s", text)
    median, low, high = (float(found.group(i)) for i in (1, 2, 3))
    assert low < median < high, text
    near(median, BATCH * LAYERS * 3e-3, 0.02)
    failing = re.search(r"with failures ([0-9.]+) s, with a checkpoint every ([0-9]+) steps", text)
    assert float(failing.group(1)) > median and int(failing.group(2)) > 1, text


def check_refusals(folder):
    simulate(folder, 1, "--pp", "1", "--dp", "1", "--jitter", "nan", fails="--jitter")
    simulate(folder, 1, "--pp", "1", "--dp", "1", "--device-hours", "0", fails="--device-hours")
    simulate(folder, 1, "--global-batch-size", "0", fails="--global-batch-size")
    simulate(folder, 1, "--memory-limit", "0", fails="--memory-limit")
    simulate(folder, 1, "--memory-limit", "1.5x", fails="must be bytes above 0, as 24GiB, 0.5GiB")
    simulate(folder, 1, "--memory-limit", "1.5GiB")
    halves = ("--pp", "2", "--dp", "1", "--layer-boundaries", "0;1;4")
    assert seconds(simulate(folder, 2, *halves, "--node-order", "1,0")) == seconds(
        simulate(folder, 2, *halves))
    simulate(folder, 2, *halves, "--node-order", "1,1", fails="--node-order: write each")
    simulate(folder, 2, "--pp", "2", fails="--pp and --dp belong together")
    simulate(folder, 1, "--pp", "2", "--dp", "1", fails="devices")
    simulate(
        folder, 2, "--pp", "2", "--dp", "1", "--mbs", "4", "--custom-schedule", "0F 1F",
        fails="schedule",
    )
    simulate(folder, 1, "--pp", "1", "--dp", "1", "--slow-device", "fast", fails="--slow-device")
    simulate(folder, 1, "--pp", "1", "--dp", "1", "--slow-device", "7:2", fails="slow device 7")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        described(folder)
        check_pipelines(folder)
        check_what_varies(folder)
        check_refusals(folder)
    print("simulate: as worked out by hand")


if __name__ == "__main__":
    main()
