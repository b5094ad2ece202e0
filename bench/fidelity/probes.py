#!/usr/bin/env python3
"""Do probes of one machine give the same first plan, and know load when there is some?

usage: probes.py [--build build] [--ranks 4] [--probes 20] [--loops 0] [--keep FILE]
                 [--model gpt-mini] [--sequence 64] [--batch 16] [--least 19]

Takes so many quick probes, plans on each, and counts the first plans and the probes
that call the machine busy. --loops runs so many busy loops beside each probe. With
--keep, probes of earlier calls in the file count as well, so that a session can be
taken in parts. The exit status is 1 where the commonest plan came first in a smaller
share than --least of 20 asks for; with --loops, where a probe did not call the machine busy.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile


def plan_key(strategy):
    """What a plan is, without its seconds."""
    return " ".join(
        str(strategy[key]) for key in (
            "pipeline_parallel_degree", "reduced_data_parallel_degree", "tensor_parallel_degree",
            "distribution", "same_samples", "microbatch_size", "stages_per_rank", "schedule")
        if key in strategy) + " " + str([stage["layers"] for stage in strategy["stages"]])


def verdict(probes, loops, least):
    """Why these probes are not good enough, "" when they are."""
    if loops:
        missed = sum(1 for probe in probes if not probe["busy"])
        return f"{missed} of {len(probes)} probes did not see {loops} busy loops" if missed else ""
    (_, most), = collections.Counter(probe["plan"] for probe in probes).most_common(1)
    return ("" if 20 * most >= least * len(probes)
            else f"the commonest first plan came {most} times in {len(probes)}")


def one_probe(tessera, options, cluster):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
             for _ in range(options.loops)]
    try:
        printed = subprocess.run(
            [tessera, "launch", "-n", str(options.ranks), "--", tessera, "probe", "--quick",
             "-o", cluster], check=True, capture_output=True, text=True).stdout
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    best = json.loads(subprocess.run(
        [tessera, "plan", "--model", options.model, "--sequence", str(options.sequence),
         "--global-batch-size", str(options.batch), "--cluster-file", cluster, "--json"],
        check=True, capture_output=True, text=True).stdout)["strategies"][0]
    with open(cluster) as file:
        quality = json.load(file)["probe"]
    return {"plan": plan_key(best), "seconds": best["seconds"],
            "busy": "the machine is busy" in printed, "probe": quality}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--probes", type=int, default=20)
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--model", default="gpt-mini")
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--least", type=int, default=19, help="of 20")
    parser.add_argument("--keep")
    options = parser.parse_args()
    tessera = os.path.abspath(os.path.join(options.build, "bin", "tessera"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    probes = []
    if options.keep and os.path.exists(options.keep):
        with open(options.keep) as file:
            probes = json.load(file)
    with tempfile.TemporaryDirectory() as work:
        for _ in range(options.probes):
            probes.append(one_probe(tessera, options, os.path.join(work, "cluster.json")))
            if options.keep:
                with open(options.keep, "w") as file:
                    json.dump(probes, file, indent=1)
    for plan, count in collections.Counter(probe["plan"] for probe in probes).most_common():
        seconds = sorted(probe["seconds"] for probe in probes if probe["plan"] == plan)
        print(f"{count} of {len(probes)}: {plan}: {seconds[0]:.4f} to {seconds[-1]:.4f} s")
    foreign = sorted(probe["probe"].get("foreign_processors", 0) for probe in probes)
    print(f"{sum(probe['busy'] for probe in probes)} of {len(probes)} call the machine busy; other "
          f"programs used {foreign[0]:.2f} to {foreign[-1]:.2f} processors")
    found = verdict(probes, options.loops, options.least)
    if found:
        print(f"probes: {found}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
