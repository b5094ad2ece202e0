#!/usr/bin/env python3
"""usage: resume_test.py PROGRAM REPOSITORY

A run that `--steps` ends between two validations, and so validates once more, goes on with the dropout
masks of the uninterrupted run; how often a run validates changes no mask either. A resumed run follows
the optimizer's options of its job, on one rank and on two.
"""
import json
import os
import shutil
import subprocess
import tempfile

from jobs import PROGRAM, call, furthest, prepare_data, train

STEPS = 6
LAYOUTS = {
    "streams": (1, {"microbatches": 2}),
    "places": (1, {"microbatches": 2, "random": "layout_independent"}),
    "pipeline": (2, {"pipeline_parallel_degree": 2, "microbatches": 2,
                     "random": "layout_independent"}),
}


def job_of(name, parallel, every=3, **optimizer):
    return {
        "parallel": {"reproducible": True, "seed": 3, "timeout_seconds": 60, **parallel},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.2}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 0, **optimizer},
        "checkpoint": {"directory": "saved_" + name},
        "validation": {"every": every, "batches": 2},
        "steps": STEPS,
    }


def state_of(name):
    shown = json.loads(call(PROGRAM, "checkpoint", "show", "saved_" + name, "--json"))
    return next(one["state_hash"] for one in shown if one["newest"])


def check_masks(name, ranks, parallel):
    whole = train("whole", job_of("whole", parallel), ranks)
    for every in (2, 0):
        other = train("other", job_of("other", parallel, every), ranks)
        assert other == whole, (name, every, other, whole)
        shutil.rmtree("saved_other")
    cut = job_of("cut", parallel)
    first = train("cut", cut, ranks, "--steps", "4")
    rest = train("cut", cut, ranks, "--resume")
    assert first == whole[:4] and rest[-2:] == whole[4:], (name, first, rest, whole)
    assert state_of("cut") == state_of("whole"), name
    shutil.rmtree("saved_cut")
    shutil.rmtree("saved_whole")


def losses_with(ranks, parallel, **optimizer):
    """Of the steps behind a checkpoint that was made with the defaults."""
    shutil.copytree("saved_start", "saved_changed")
    losses = train("changed", job_of("changed", parallel, **optimizer), ranks, "--resume")
    shutil.rmtree("saved_changed")
    return losses[-3:]


def check_options(parallel):
    plain = {"microbatches": 2, "random": "layout_independent"}
    train("start", job_of("start", plain), 1, "--steps", "3")
    as_before = losses_with(1, plain)
    for change in ({"weight_decay": 50.0}, {"beta1": 0.1}, {"eps": 0.1}):
        one = losses_with(1, plain, **change)
        assert furthest(one, as_before) > 1e-4, (change, one, as_before)
        two = losses_with(2, parallel, **change)
        assert furthest(two, one) < 1e-4, (change, two, one)


def check_settings():
    """What a job says otherwise than its checkpoint is told, and what is the same is not."""
    plain = {"microbatches": 2}
    job = job_of("told", plain)
    train("told", job, 1, "--steps", "2")
    for change, told in ((["--set", "data.batch=4", "--set", "parallel.seed=9"],
                          ("data.batch: the checkpoint has 8, the job 4",
                           "parallel.seed: the checkpoint has 3, the job 9")),
                         ([], ())):
        shutil.copytree("saved_told", "saved_again")
        said = subprocess.run(
            [PROGRAM, "train", "told.json", "--resume", "--steps", "3", *change, "--set",
             "checkpoint.directory=saved_again"],
            capture_output=True, text=True, timeout=120, check=True)
        said = said.stdout + said.stderr
        assert all(one in said for one in told), said
        assert ("other settings than" in said) == bool(told), said
        shutil.rmtree("saved_again")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    prepare_data()
    for layout, (number, keys) in LAYOUTS.items():
        check_masks(layout, number, keys)
    check_options(LAYOUTS["pipeline"][1])
    check_settings()
    os.chdir("/")
print("all as expected")
