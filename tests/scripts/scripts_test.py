#!/usr/bin/env python3
"""usage: scripts_test.py SCRIPT first|rest PLAIN PORTED MPIRUN

Runs a script of tests/scripts as the plain program once and as the ported program in each layout
that suits it. Losses, the outputs of the evaluation, parameters and buffers must be equal, and
every pipeline rank must own parameters. The first layouts are those that differ most from each
other; the rest are for a longer run.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile

SCRIPT, PART, PLAIN, PORTED, MPIRUN = sys.argv[1:]
# Relative to the larger of a number and the typical size of its tensor.
TOLERANCE = 1e-5
SECONDS_FOR_A_RUN = 60


def layout(name, pipeline, replicas=1, **keys):
    configuration = {"pipeline_parallel_degree": pipeline, "timeout_seconds": 40, **keys}
    if replicas > 1:
        configuration["ddp"] = True
    return name, pipeline * replicas, configuration


STATIC = {"static_mode": True, "static_mode_steps": 2}
FAST = {**STATIC, "fast_mode": True}
# Statistics of a batch and numbers that are drawn inside of the step are those of the plain script
# only where one process sees the whole batch at once.
WHOLE_BATCH = [
    layout("pp2", 2, microbatches=1),
    layout("pp4", 4, microbatches=1),
    layout("pp2 fast", 2, microbatches=1, **FAST),
    layout("pp2 static", 2, microbatches=1, **STATIC),
]
ALL = [
    layout("pp2 x 2 microbatches", 2, microbatches=2),
    layout("pp2 x dp2 x 2 microbatches", 2, replicas=2, microbatches=2),
    layout("pp4 fast x 2 microbatches", 4, microbatches=2, **FAST),
    layout("pp2", 2, microbatches=1),
    layout("pp4 x 2 microbatches", 4, microbatches=2),
    layout("pp2 static x 2 microbatches", 2, microbatches=2, **STATIC),
]
# Batch normalisation; randn_like, which a static step draws from streams of its own.
FIRST = 3
LAYOUTS = {"residual": WHOLE_BATCH, "vae": WHOLE_BATCH[:2]}


class Record:
    """What one process of a script wrote."""

    def __init__(self, path):
        self.losses, self.tensors, self.owned = [], {}, []
        with open(path, encoding="utf-8") as file:
            for line in file:
                kind, *words = line.split()
                if kind == "loss":
                    self.losses.append(float(words[0]))
                elif kind == "tensor":
                    # A scalar has an empty list of sizes, which leaves no word.
                    sizes = words[1] if words[1].endswith(",") else ""
                    numbers = words[2:] if sizes else words[1:]
                    self.tensors[words[0]] = (sizes, [float(number) for number in numbers])
                elif kind == "owned":
                    self.owned.append(int(words[0]))


def furthest(got, wanted):
    """The largest difference of two lists of numbers, relative as TOLERANCE is."""
    typical = (sum(x * x for x in wanted) / max(1, len(wanted))) ** 0.5
    found = 0.0
    for a, b in zip(got, wanted, strict=True):
        if not abs(a - b) <= 1e30:
            return float("inf")
        found = max(found, abs(a - b) / max(abs(b), typical, 1e-12))
    return found


def compare(name, plain, ranks):
    """What is wrong, one line each."""
    failures = []
    # Each replica has the losses of its part of the batch, on each of its ranks.
    losses = [sum(step) / len(step) for step in zip(*(rank.losses for rank in ranks), strict=True)]
    if len(losses) != len(plain.losses):
        return [f"{name}: {len(losses)} losses, expected {len(plain.losses)}"]
    for step, (got, wanted) in enumerate(zip(losses, plain.losses)):
        if furthest([got], [wanted]) > TOLERANCE:
            failures.append(f"{name}: loss of step {step} is {got:.9g}, expected {wanted:.9g}")
    for number, rank in enumerate(ranks):
        if sorted(rank.tensors) != sorted(plain.tensors):
            differ = sorted(set(rank.tensors) ^ set(plain.tensors))
            failures.append(f"{name}: rank {number} and the plain script differ in {differ}")
            continue
        for tensor, (sizes, wanted) in plain.tensors.items():
            if rank.tensors[tensor][0] != sizes:
                failures.append(f"{name}: rank {number}, {tensor} is {rank.tensors[tensor][0]}, "
                                f"expected {sizes}")
                continue
            difference = furthest(rank.tensors[tensor][1], wanted)
            if difference > TOLERANCE:
                failures.append(f"{name}: rank {number}, {tensor} is off by {difference:.1e}")
    # A script of two models says it for each of them.
    for number, rank in enumerate(ranks):
        if sum(rank.owned) == 0:
            failures.append(f"{name}: rank {number} owns no parameter")
    return failures


def run(command, record):
    environment = {**os.environ, "SCRIPT_RECORD": record}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment,
                              timeout=SECONDS_FOR_A_RUN, check=False)
    except subprocess.TimeoutExpired as expired:
        return f"ended after {SECONDS_FOR_A_RUN} s:\n{expired.stdout}\n{expired.stderr}"
    if done.returncode != 0:
        return f"exit status {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return None


def main():
    failures = []
    with tempfile.TemporaryDirectory() as work:
        error = run([PLAIN, SCRIPT], work + "/plain")
        if error:
            sys.exit(f"the plain script: {error}")
        plain = Record(work + "/plain.0")
        assert len(plain.losses) >= 5 and len(set(plain.losses)) > 1, plain.losses
        layouts = LAYOUTS.get(SCRIPT, ALL)
        layouts = layouts[:FIRST] if PART == "first" else layouts[FIRST:]
        for number, (name, count, configuration) in enumerate(layouts):
            path = f"{work}/{number}.json"
            with open(path, "w", encoding="utf-8") as file:
                json.dump(configuration, file)
            error = run([*shlex.split(MPIRUN), "-n", str(count), PORTED, SCRIPT, path],
                        f"{work}/{number}")
            if error:
                failures.append(f"{name}: {error}")
                continue
            ranks = [Record(f"{work}/{number}.{rank}") for rank in range(count)]
            found = compare(name, plain, ranks)
            owned = " + ".join(str(sum(rank.owned)) for rank in ranks)
            print(f"{SCRIPT}, {name}: {'right' if not found else 'wrong'}, parameters {owned}",
                  flush=True)
            failures += found
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
