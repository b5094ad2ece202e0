#!/usr/bin/env python3
"""Predicted and measured step time of one GPT under many strategies, in one run.

usage: fidelity.py [--build build] [--ranks 4] [--batch 16] [--model gpt-mini]
                   [--sequence 64] [--steps 8] [--json FILE]

Probes the machine under the launcher, then lets `tessera plan --trials` price and
train every strategy that the runtime can execute on these ranks (pipeline degrees,
replicas, microbatch sizes), under both schedules. Prints one table, Spearman's
coefficient and how far predictions are off.
"""
import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile

SCHEDULES = ["interleaved", "simple"]


def ranks_of(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in order[at:end]:
            ranks[i] = (at + end - 1) / 2
        at = end
    return ranks


def spearman(a, b):
    x, y = ranks_of(a), ranks_of(b)
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y))
    under = math.sqrt(sum((p - mean_x) ** 2 for p in x) * sum((q - mean_y) ** 2 for q in y))
    return over / under if under else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="gpt-mini")
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--strategies", type=int, default=12, help="of each schedule, at most")
    parser.add_argument("--json")
    options = parser.parse_args()
    tessera = os.path.abspath(os.path.join(options.build, "bin", "tessera"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    trials = []
    with tempfile.TemporaryDirectory() as work:
        cluster = os.path.join(work, "cluster.json")
        subprocess.run(
            [tessera, "launch", "-n", str(options.ranks), "--", tessera, "probe", "-o", cluster],
            check=True)
        for schedule in SCHEDULES:
            kept = os.path.join(work, schedule + ".json")
            subprocess.run(
                [tessera, "plan", "--model", options.model, "--sequence", str(options.sequence),
                 "--global-batch-size", str(options.batch), "--cluster-file", cluster,
                 "--schedule", schedule, "--trials", str(options.strategies),
                 "--trial-steps", str(options.steps), "--calibration-file", kept],
                check=True)
            with open(kept) as file:
                trials += json.load(file)["trials"]
        with open(cluster) as file:
            machine = json.load(file)
    done = [t for t in trials if "measured_s" in t]
    done.sort(key=lambda t: t["predicted_s"])
    print(f"\n{options.model}, sequence {options.sequence}, batch {options.batch}, "
          f"{options.ranks} ranks on {os.cpu_count()} processors")
    print("  pp  dp  mbs  schedule      predicted s  measured s  measured / predicted")
    for t in done:
        print(f"  {t['pp']:2}  {t['dp']:2}  {t['mbs']:3}  {t['schedule']:12}  {t['predicted_s']:11.4f}"
              f"  {t['measured_s']:10.4f}  {t['measured_s'] / t['predicted_s']:20.2f}")
    for t in trials:
        if "failure" in t:
            print(f"  {t['pp']:2}  {t['dp']:2}  {t['mbs']:3}  {t['schedule']:12}  failed: {t['failure']}")
    predicted = [t["predicted_s"] for t in done]
    measured = [t["measured_s"] for t in done]
    ratios = sorted(m / p for m, p in zip(measured, predicted))
    middle = ratios[len(ratios) // 2]
    spread = sorted(abs(r / middle - 1) for r in ratios)[len(ratios) // 2]
    result = {
        "command": " ".join(sys.argv), "machine": platform.processor() or platform.machine(),
        "nodes": machine["nodes"], "load_average": os.getloadavg(), "trials": trials,
        "strategies": len(done), "spearman": spearman(predicted, measured),
        "median_measured_by_predicted": middle, "median_deviation_from_it": spread}
    print(f"{len(done)} strategies: Spearman {result['spearman']:.3f}; measured / predicted is "
          f"{middle:.2f} in the middle, half of them within {100 * spread:.0f} % of that; "
          f"load average {result['load_average'][0]:.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0 if len(done) >= 12 else 1


if __name__ == "__main__":
    sys.exit(main())
