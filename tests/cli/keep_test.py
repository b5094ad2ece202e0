#!/usr/bin/env python3
"""usage: keep_test.py PROGRAM REPOSITORY

Which checkpoints of a job stay: the newest, every n-th, and the one with the lowest validation loss,
also when the job is stopped and resumed. FOLDER/best is that one wherever weights are taken.
"""
import glob
import json
import os
import tempfile

import jobs
from jobs import PROGRAM, REPOSITORY, call, log_of

STEPS, KEEP, EVERY, SEQUENCE = 8, 2, 3, 16


def job_of(name, **checkpoint):
    return {
        "parallel": {"microbatches": 2, "timeout_seconds": 60, "seed": 3},
        "model": {"name": "gpt-tiny"},
        "data": {"directory": "data", "sequence": SEQUENCE, "batch": 8},
        # Steps so large that the loss rises again.
        "optimizer": {"type": "sgd", "learning_rate": 6.0, "warmup_steps": 0, "decay": "constant",
                      "clip_norm": 1.0},
        "checkpoint": {"directory": name, "every": 1, "keep": KEEP, "keep_every": EVERY,
                       "keep_best": True, **checkpoint},
        "validation": {"every": 1, "batches": 1},
        "steps": STEPS,
    }


def train(job, *options):
    jobs.train(job["checkpoint"]["directory"], job, 1, *options)


def expected(losses):
    """The steps whose checkpoints stay, worked out from all validation losses."""
    best = min(losses, key=lambda step: (losses[step], step))
    return {best, *range(STEPS - KEEP + 1, STEPS + 1), *range(EVERY, STEPS + 1, EVERY)}, best


def kept(name):
    return {int(tag.removeprefix("step_")) for tag in os.listdir(name) if tag.startswith("step_")}


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", "400", "--text",
         *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    train(job_of("whole"))
    found = {record["step"]: record["loss"] for record in log_of("whole", "validation")}
    wanted, lowest = expected(found)
    print("validation losses", found, "stay", sorted(wanted))
    assert len(found) == STEPS and kept("whole") == wanted, (kept("whole"), wanted)
    assert lowest not in {*range(STEPS - KEEP + 1, STEPS + 1)}, "the best must not be new anyhow"

    stopped = job_of("stopped")
    train(stopped, "--steps", "4")
    train(stopped, "--resume", "--steps", "5")
    train(stopped, "--resume")
    assert kept("stopped") == wanted, (kept("stopped"), wanted)

    shown = json.loads(call(PROGRAM, "checkpoint", "show", "whole", "--json"))
    for one in shown:
        step = int(one["tag"].removeprefix("step_"))
        assert one["best"] == (step == lowest) and one["for_good"] == (step % EVERY == 0), one
        assert abs(one["score"] - found[step]) < 1e-9, (one, found)
    text = call(PROGRAM, "checkpoint", "show", "whole")
    assert f"step_{lowest}: " in text and text.count("(the best)") == 1, text
    assert call(PROGRAM, "checkpoint", "show", "whole/best").startswith(f"step_{lowest}: ")
    said = call(PROGRAM, "launch", "-n", "1", "--", PROGRAM, "eval", "whole/best", "--data", "data",
                "--sequence", str(SEQUENCE), "--samples", "8", "--json")
    loss = json.loads(said[said.index("{"):said.rindex("}") + 1])["loss"]
    assert abs(loss - found[lowest]) < 2e-6 * loss, (loss, found)
    call(PROGRAM, "export", "whole/best", "exported")

    # Written beside training, the same checkpoints hold the same states.
    background = job_of("background", background=True)
    train(background, "--steps", "5")
    train(background, "--resume")
    assert kept("background") == wanted, (kept("background"), wanted)
    others = json.loads(call(PROGRAM, "checkpoint", "show", "background", "--json"))
    assert [one["state_hash"] for one in others] == [one["state_hash"] for one in shown]
    assert [one["score"] for one in others] == [one["score"] for one in shown]

    plain = job_of("plain", keep_every=0, keep_best=False)
    train(plain)
    assert kept("plain") == {STEPS - 1, STEPS}, kept("plain")
    plain["validation"]["every"] = 0
    plain["checkpoint"]["directory"] = "unscored"
    train(plain, "--steps", "1")
    assert "has a validation loss" in call(PROGRAM, "export", "unscored/best", "x", status=2)
    for setting in ("validation.every=0", "validation.every=3"):
        said = call(PROGRAM, "train", "whole.json", "--check", "--set", setting, "--set",
                    "checkpoint.every=4", status=2)
        assert "'checkpoint.keep_best' needs a validation before every save" in said, said
print("all as expected")
