#!/usr/bin/env python3
"""Records the losses of a set of training jobs, and compares two records bit for bit.

  losses.py record --program build/bin/tessera --data run/data --output before.json
  losses.py compare before.json after.json

A change that restructures code and means to keep the mathematics records before and after, on one
machine: another processor's products may round otherwise. Every job runs with "reproducible".
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

STEPS = 8
STATIC = {"parallel.static_mode": True, "parallel.static_mode_steps": 2}

# Name: example, settings.
JOBS = {
    "quickstart": ("quickstart.json", {}),
    "quickstart_pp2_tp2": ("quickstart_pp2_tp2.json", {}),
    "quickstart_tp4": ("quickstart_tp4.json", {}),
    "quickstart_2d": ("quickstart_2d.json", {}),
    "static": ("quickstart.json", STATIC),
    "fast": ("quickstart.json", {**STATIC, "parallel.fast_mode": True}),
    "mesh_whole_batch": ("quickstart_2d.json", {"parallel.microbatches": 1, "data.batch": 16}),
}


def record(arguments):
    examples = pathlib.Path(__file__).resolve().parents[2] / "examples"
    program = str(pathlib.Path(arguments.program).resolve())
    losses = {}
    for name, (example, settings) in JOBS.items():
        job = json.loads((examples / example).read_text())
        for section in ("validation", "checkpoint", "sample"):
            job.pop(section, None)
        job["log_every"] = 1
        job["parallel"]["reproducible"] = True
        job["data"]["directory"] = str(pathlib.Path(arguments.data).resolve())
        for key, value in settings.items():
            section, field = key.split(".")
            job[section][field] = value
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "job.json")
            file.write_text(json.dumps(job))
            log = pathlib.Path(folder, "log.jsonl")
            subprocess.run(
                [program, "launch", "-n", "4", "--", program, "train", str(file),
                 "--steps", str(STEPS), "--log", str(log)],
                check=True, timeout=arguments.timeout, stdout=subprocess.DEVNULL, cwd=folder)
            entries = [json.loads(line) for line in log.read_text().splitlines()]
        losses[name] = [entry["loss"] for entry in entries if "loss" in entry]
        if len(losses[name]) < STEPS:
            raise SystemExit(f"losses: {name}: {len(losses[name])} losses in the log of {STEPS} steps")
        print(f"{name}: {losses[name][0]!r} ... {losses[name][-1]!r}", flush=True)
    pathlib.Path(arguments.output).write_text(json.dumps(losses, indent=1) + "\n")


def compare(arguments):
    before, after = (json.loads(pathlib.Path(file).read_text()) for file in arguments.files)
    failed = False
    for name in sorted(before.keys() | after.keys()):
        first, second = before.get(name), after.get(name)
        same = first == second
        failed = failed or not same
        print(f"{name}: {'equal' if same else f'DIFFERENT: {first} and {second}'}")
    sys.exit(1 if failed else 0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("--program", required=True)
    recording.add_argument("--data", required=True)
    recording.add_argument("--output", required=True)
    recording.add_argument("--timeout", type=float, default=600)
    comparing = commands.add_parser("compare")
    comparing.add_argument("files", nargs=2)
    arguments = parser.parse_args()
    {"record": record, "compare": compare}[arguments.command](arguments)


if __name__ == "__main__":
    main()
