#!/usr/bin/env python3
"""Runs bench/blocks and the same work with PyTorch in turns and prints one Markdown table.

    bench/pytorch/compare.py [--build build] [--torchrun torchrun] [--steps 20] [--rounds 2] [--json FILE]

The best of all rounds counts: other load only adds. Each library is compared with its own single process as well,
since the two may use different matrix products. Needs an idle machine and torch 2.8 (`pip install torch`).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
          "--mca", "btl_vader_single_copy_mechanism", "none", "-n", "2"]
SECONDS = 600  # longest run of one program

# What is compared: its name, arguments of bench_blocks, PyTorch's own and the strategies of blocks.py.
CASES = [
    ("pipeline of 2, as requested step by step", ["--pp", "2"], "torch.distributed.pipelining, 1F1B", "pipeline"),
    ("pipeline of 2, recorded (fast mode)", ["--pp", "2", "--mode", "fast"], "the same, GPipe", "gpipe"),
    ("2 replicas", ["--dp", "2"], "DistributedDataParallel", "ddp"),
    ("tensor parallel over 2", ["--tp", "2"], "DTensor (parallelize_module)", "dtensor"),
]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(lines) != 1:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(lines[0])


def best_of(results):
    """(milliseconds of a step, of one process) of the best of several runs."""
    return (min(result["step"]["best_ms"] for result in results),
            min(result["one_process"]["best_ms"] for result in results))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="build folder")
    parser.add_argument("--torchrun", default="torchrun", help="of the PyTorch that is compared")
    parser.add_argument("--steps", default="20", help="timed rounds of a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each program")
    parser.add_argument("--json", help="also write all results here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    ours = {case[0]: [] for case in CASES}
    theirs = {case[0]: [] for case in CASES}
    for _ in range(options.rounds):
        for name, arguments, _, strategy in CASES:
            ours[name].append(run([*MPIRUN, f"{options.build}/bench/blocks/bench_blocks", *arguments,
                                   "--steps", options.steps, "--json"]))
            theirs[name].append(run([options.torchrun, "--nproc-per-node", "2", str(HERE / "blocks.py"), strategy,
                                     "--steps", options.steps, "--json"]))
    print(f"{os.cpu_count()} processors, load average before {load:.1f}, "
          f"torch {theirs[CASES[0][0]][0]['torch']}, best of {options.rounds} x {options.steps} steps, 2 ranks\n")
    print("| Tessera | ms | of one process | PyTorch | ms | of one process |\n| --- | --- | --- | --- | --- | --- |")
    for name, _, other, _ in CASES:
        step, alone = best_of(ours[name])
        other_step, other_alone = best_of(theirs[name])
        print(f"| {name} | {step:.0f} | {step / alone:.2f} | {other} | {other_step:.0f} | {other_step / other_alone:.2f} |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"load_before": load, "tessera": ours, "pytorch": theirs}, indent=1))


if __name__ == "__main__":
    main()
