#!/usr/bin/env python3
"""Trials of a program that trains a described model: examples/02_after.cpp, whose own configuration is
a pipeline of two. usage: program_trials_test.py PROGRAM EXAMPLE
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM, EXAMPLE = sys.argv[1:]
BATCH = 64
PARAMETERS = {"a": 192, "b": 4160, "c": 4160, "d": 195}


def describe(folder):
    layers = [{"name": name, "kind": "block", "parameters": parameters,
               "output_elements_per_sample": 64 if name != "d" else 3,
               "forward_seconds_per_sample": {"cpu": {"1": 1e-6}}}
              for name, parameters in PARAMETERS.items()]
    (folder / "model.json").write_text(json.dumps(
        {"name": "spiral", "global_batch_size": BATCH, "precision": "fp32", "layers": layers}))
    (folder / "cluster.json").write_text(json.dumps(
        {"name": "two", "devices": {"cpu": {"memory_gib": 8}},
         "nodes": [{"device": "cpu", "count": 2, "intra_node_gbit_per_s": 10}]}))


def plan(folder, *options, status=0):
    done = subprocess.run(
        [PROGRAM, "plan", "--cluster-file", "cluster.json", *options], cwd=folder,
        capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == status, (options, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


with tempfile.TemporaryDirectory() as name:
    work = pathlib.Path(name)
    describe(work)
    described = ("--model-file", "model.json")
    # The program notes what it is given, on both ranks, and then trains.
    noting = r'printf "%s\036" "$SM_HP_MP_PARAMETERS" >> seen.$OMPI_COMM_WORLD_RANK; exec "$0"'
    said = plan(work, *described, "--trials", "3", "--spread-trials", "--trial-steps", "5",
                "-o", "config.json", "--", "/bin/sh", "-c", noting, EXAMPLE)
    trials = said[said.index("trials of 5 steps on 2 ranks"):]
    rows = re.findall(r"^ +(\d+) +[\d.]+ +([\d.e-]+)  (pp \d+  dp \d+)", trials, re.M)
    texts = [(work / f"seen.{rank}").read_text() for rank in (0, 1)]
    assert texts[0] == texts[1] and len(rows) == 3, (said, texts)
    given = [json.loads(text) for text in texts[0].split("\036")[:-1]]
    for (_, seconds, layout), config in zip(rows, given, strict=True):
        pp = config.get("pipeline_parallel_degree", 1)
        assert float(seconds) > 0 and layout == f"pp {pp}  dp {2 // pp}", (said, config)
    assert len({layout for _, _, layout in rows}) == 2, said
    winner = re.search(r"^winner: (\d+)$", said, re.M)
    measured = {rank: float(seconds) for rank, seconds, _ in rows}
    assert winner and measured[winner[1]] == min(measured.values()), said
    written = json.loads((work / "config.json").read_text())
    assert f"written: pp {written.get('pipeline_parallel_degree', 1)}  " in said, (said, written)
    # One with two optimizers, of which each counts its own updates: the first two of each are left
    # out, and the trial goes on until one of them has made five.
    lines = "".join(f'echo "tessera: seconds of update {update}: {seconds}" >&2; '
                    for update, seconds in ((2, 9), (2, 9), (3, 0.5), (3, 0.25), (4, 0.25), (4, 0.25)))
    last = 'sleep 1; touch late; echo "tessera: seconds of update 5: 0.5" >&2; sleep 100'
    said = plan(work, *described, "--trials", "1", "--trial-steps", "5", "--", "/bin/sh", "-c",
                f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec sleep 100; {lines} {last}')
    assert re.search(r"^ +1 +[\d.]+ +0\.25 ", said, re.M) and (work / "late").exists(), said
    # A program whose updates nobody sees, and one that fails.
    said = plan(work, *described, "--trials", "1", "--", "/bin/true", status=1)
    assert "it ended after fewer than 3 calls of DistributedOptimizer::step" in said, said
    said = plan(work, *described, "--trials", "1", "--", "/bin/false", status=1)
    assert "exit status 1" in said and "all 1 trials failed" in said, said
    # What is missing, and what fits nothing.
    said = plan(work, *described, "--trials", "1", status=2)
    assert "needs the program" in said and "-- ./my_training" in said, said
    said = plan(work, "--model", "gpt-tiny", "--trials", "1", "--", EXAMPLE, status=2)
    assert "trained by tessera train" in said, said
    said = plan(work, *described, "--", EXAMPLE, status=2)
    assert "--trials K" in said, said
