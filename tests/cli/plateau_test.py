#!/usr/bin/env python3
"""usage: plateau_test.py PROGRAM REPOSITORY

A learning rate that falls when the validation loss does not: by the losses in the log, worked out
here again; on two ranks as on one; a resumed run is the uninterrupted one, also where the first part
ended between two validations.
"""
import os
import tempfile

from jobs import PROGRAM, call, furthest, log_of, prepare_data, train, write_job

STEPS, EVERY, PATIENCE, FACTOR, PEAK, LEAST = 24, 2, 2, 0.5, 0.05, 0.004


def job_of(folder="", **parallel):
    job = {
        "parallel": {"microbatches": 2, "timeout_seconds": 60, "seed": 3, **parallel},
        "model": {"name": "gpt-tiny", "options": {"n_layer": 1, "dropout": 0.0}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        # So large a rate that the loss does not fall for long.
        "optimizer": {"type": "sgd", "momentum": 0.9, "learning_rate": PEAK, "warmup_steps": 2,
                      "min_learning_rate": LEAST, "decay": "plateau", "plateau_factor": FACTOR,
                      "plateau_patience": PATIENCE, "plateau_threshold": 0.3},
        "validation": {"every": EVERY, "batches": 2},
        "steps": STEPS,
    }
    if folder:
        job["checkpoint"] = {"directory": folder, "every": 5}
    return job


def rates_of(name):
    return [record["lr"] for record in log_of(name, "step")]


def expected(validations):
    """The rate of each step by the validations before it."""
    rates, factor, lowest, without = [], 1.0, None, 0
    for step in range(STEPS):
        warm = min(1.0, (step + 1) / 3)
        rate = PEAK * warm * factor
        rates.append(rate if step < 2 else max(LEAST, rate))
        if (step + 1) % EVERY == 0:
            loss = validations[step + 1]
            if lowest is None or loss < lowest - 0.3 * abs(lowest):
                lowest, without = loss, 0
            elif without + 1 == PATIENCE:
                factor, without = factor * FACTOR, 0
            else:
                without += 1
    return rates


def near(found, wanted):
    assert len(found) == len(wanted), (found, wanted)
    assert max(abs(a - b) / b for a, b in zip(found, wanted)) < 1e-6, (found, wanted)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    alone = train("alone", job_of("alone"), 1)
    rates = rates_of("alone")
    validations = {record["step"]: record["loss"] for record in log_of("alone", "validation")}
    near(rates, expected(validations))
    assert len(set(rates)) >= 5 and min(rates[2:]) == LEAST, rates  # it fell, to the least

    two = train("two", job_of(pipeline_parallel_degree=2), 2)
    assert furthest(two, alone) < 1e-4
    near(rates_of("two"), rates)

    # Cut after a step that is no validation of the whole run, and which is validated at the cut.
    for cut in (7, 10):
        folder = f"cut_{cut}"
        assert train(folder, job_of(folder), 1, "--steps", str(cut)) == alone[:cut]
        assert train(folder, job_of(folder), 1, "--resume") == alone, cut
        assert rates_of(folder) == rates, (cut, rates_of(folder), rates)

    def refused(change, *words):
        job = job_of()
        change(job)
        said = call(PROGRAM, "train", write_job("refused", job), "--check", status=2)
        assert all(word in said for word in words), (words, said)
    refused(lambda job: job.pop("validation"), "'validation.every' is 0")
    refused(lambda job: job["optimizer"].update(decay="linear"), "'optimizer.plateau_patience'",
            "leave it out")
    refused(lambda job: job["optimizer"].update(plateau_factor=0), "plateau_factor")
print("all as expected")
