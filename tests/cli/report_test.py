#!/usr/bin/env python3
"""usage: report_test.py PROGRAM REPOSITORY

Log, timeline and report of a run that is stopped and resumed: one count of steps, one
bubble, ids that keep runs apart, and an end that says how it went.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM, REPOSITORY = sys.argv[1:]
RANKS, MICROBATCHES, ACCUMULATION, STEPS = 4, 2, 2, 6
WIDTH, LAYERS, VOCABULARY, SEQUENCE = 32, 2, 400, 16


def call(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def records_of(name):
    with open(name + ".jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return {kind: [one for one in records if one["type"] == kind]
            for kind in ("run", "step", "validation", "end")}


def remove_when(folder, there):
    """Removes an empty folder once a file is there."""
    while not os.path.exists(there):
        time.sleep(0.01)
    os.rmdir(folder)


def train(name, *options, status=0, **changes):
    """The records of the log, or what was printed by a run that ends with another status."""
    job = {
        "parallel": {"pipeline_parallel_degree": 2, "ddp": True, "microbatches": MICROBATCHES,
                     "timeout_seconds": 60},
        "model": {"name": "gpt-tiny", "options": {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2}},
        "data": {"directory": "data", "sequence": SEQUENCE, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 1},
        "checkpoint": {"directory": name},
        "validation": {"every": 2, "batches": 1},
        "accumulation": ACCUMULATION,
        "steps": STEPS,
        **changes,
    }
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    timeline = () if "--timeline" in options else ("--timeline", name + ".timeline")
    printed = call(PROGRAM, "launch", "-n", str(RANKS), "--", PROGRAM, "train", name + ".json",
                   "--log", name + ".jsonl", *timeline, *options, status=status)
    return records_of(name) if status == 0 else printed


def write_json(name, content):
    with open(name, "w", encoding="utf-8") as file:
        json.dump(content, file)


def timeline_of(name):
    with open(name + ".timeline", encoding="utf-8") as file:
        return json.load(file)


def report(name, *options, status=0, timeline=None):
    output = () if "--output" in options else ("--output", name + ".html")
    return call(PROGRAM, "report", name + ".jsonl", "--timeline", timeline or name + ".timeline",
                *output, *options, status=status)


def bubble(timeline, step):
    """Worked out here once more; forward and backward of a rank never overlap."""
    events = [event for event in timeline["events"]
              if event["step"] == step and event["category"] in ("forward", "backward")]
    span = max(event["end_us"] for event in events) - min(event["start_us"] for event in events)
    busy = sum(event["end_us"] - event["start_us"] for event in events)
    return 1 - busy / (span * RANKS)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", str(VOCABULARY), "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))

    # Cut short, then resumed: one log of two starts.
    cut = train("run", "--steps", "4")
    first_timeline = timeline_of("run")
    os.rename("run.timeline", "first.timeline")
    assert [one["step"] for one in cut["step"]] == [1, 2, 3, 4]
    assert cut["end"][0]["state"] == "stopped" and "--steps 4" in cut["end"][0]["reason"], cut["end"]
    whole = train("run", "--resume")
    assert [one["step"] for one in whole["step"]] == [1, 2, 3, 4, 5, 6]
    assert [one["first_step"] for one in whole["run"]] == [1, 5]
    assert [one["step"] for one in whole["validation"]] == [2, 4, 6]
    assert [(one["state"], one["step"]) for one in whole["end"]] == [("stopped", 4), ("finished", 6)]
    assert os.path.isdir("run/step_6")
    ids = [one["run_id"] for one in whole["run"]]
    assert len(set(ids)) == 2, ids

    # Steps of the timeline are those of the log, and so is the bubble of each.
    timeline = timeline_of("run")
    assert timeline["run_id"] == ids[1] and first_timeline["run_id"] == ids[0]
    assert {event["step"] for event in first_timeline["events"]} == {2, 3, 4}
    assert {event["step"] for event in timeline["events"]} == {5, 6}
    for lines, steps in ((first_timeline, (2, 3, 4)), (timeline, (5, 6))):
        for step in steps:
            logged = next(one for one in whole["step"] if one["step"] == step)["bubble_share"]
            assert abs(logged - bubble(lines, step)) < 1e-3, (step, logged, bubble(lines, step))
    for step in (5, 6):
        here = [event for event in timeline["events"] if event["step"] == step]
        assert ({event["microbatch"] for event in here if event["category"] == "forward"}
                == set(range(MICROBATCHES * ACCUMULATION)))
        for category, names in (("optimizer", {"optimizer step"}),
                                ("comm", {"agreement of replicas", "gradient averaging"})):
            found = [event for event in here if event["category"] == category]
            assert {event["name"] for event in found} == names, (category, found)
            assert {event["rank"] for event in found} == set(range(RANKS)), category
    times = [one["elapsed_seconds"] for one in whole["step"]]
    assert times[:4] == sorted(times[:4]) and times[4:] == sorted(times[4:]), times

    # Tensors hold at least what a rank trains: weights, gradients and two moments of f32.
    for one in whole["step"]:
        assert len(one["peak_bytes"]) == RANKS, one
        assert sum(one["peak_bytes"]) >= 16 * whole["run"][0]["parameters"], one
        assert all(peak < memory for peak, memory in
                   zip(one["peak_bytes"], one["memory_bytes"], strict=True)), one

    # What MFU is made of.
    facts = whole["run"][-1]
    weights = LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH
    assert facts["flops_per_token"] == 6 * weights + 12 * LAYERS * WIDTH * SEQUENCE, facts
    assert facts["peak_flops_per_second"] > 1e6
    assert facts["command"][1:3] == ["train", "run.json"] and facts["program"].startswith("tessera ")

    text = report("run")
    for words in ("finished at step 6", "resumed at step 5", "perplexity", "MFU", "median of 6 steps"):
        assert words in text, (words, text)
    assert "unknown" not in text, text
    assert "of 123 GFLOP/s (given)" in report("run", "--peak-gflops", "123")
    with open("run.html", encoding="utf-8") as file:
        page = file.read()
    for words in ("Recorded: steps 5 to 6", "communication outside of both", 'class="optimizer"'):
        assert words in page, words

    # A simulation of a step stands below every rank; what is none, or of others, is refused.
    last = [event for event in timeline["events"] if event["step"] == STEPS]
    simulated = {**timeline, "origin": "simulated", "run_id": "",
                 "events": [{**event, "step": 0} for event in last]}
    write_json("simulated.timeline", simulated)
    report("run", "--simulated", "simulated.timeline")
    with open("run.html", encoding="utf-8") as file:
        page = file.read()
    assert page.count("<i>simulated</i>") == 2 * RANKS, page.count("<i>simulated</i>")  # two steps
    assert "on rank 3: from" in page and "simulated backward" in page
    refusal = report("run", "--simulated", "run.timeline", status=1)
    assert "it was measured" in refusal, refusal
    write_json("fewer.timeline", {**simulated, "events": [
        event for event in simulated["events"] if event["rank"] > 0]})
    refusal = report("run", "--simulated", "fewer.timeline", status=1)
    assert "fewer.timeline" in refusal and "other ranks" in refusal, refusal
    refusal = call(PROGRAM, "report", "run.jsonl", "--simulated", "simulated.timeline", status=2)
    assert "--timeline" in refusal, refusal

    # The timeline of an earlier start is of this run; another run's is not.
    report("run", timeline="first.timeline")
    train("other", steps=2, validation={"every": 0})
    refusal = report("run", timeline="other.timeline", status=1)
    assert "not of this run" in refusal and ids[1] in refusal, refusal

    # The report never takes the place of what it is made from.
    before = open("run.jsonl", "rb").read()
    os.symlink("run.jsonl", "link.html")
    for output in ("run.jsonl", "./run.jsonl", "link.html", "run.timeline"):
        assert "would be lost" in report("run", "--output", output, status=2)
        assert "would be lost" in report("run", "--chrome-trace", output, status=2)
    assert "name two files" in report("run", "--chrome-trace", "run.html", status=2)
    assert open("run.jsonl", "rb").read() == before

    # A damaged line is counted, not fatal.
    lines = before.split(b"\n")
    lines[3] = lines[3][:20] + b"\xff\x00" + lines[3][20:]
    open("run.jsonl", "wb").write(b"\n".join(lines))
    text = report("run")
    assert "left out: 1; the first: run.jsonl: line 4" in text, text
    # What cannot be written is said before the first step, two files in one at once.
    refusal = train("lost", "--timeline", "missing/t", steps=2, status=2)
    assert "missing/t" in refusal and "cannot be written" in refusal, refusal
    assert "name two files" in train("lost", "--timeline", "lost.jsonl", steps=2, status=2)
    assert not os.path.exists("lost.jsonl")

    # A run that fails says so: the folder of its timeline goes away while it runs.
    os.mkdir("gone")
    waiting = threading.Thread(target=remove_when, args=("gone", "fails.jsonl"))
    waiting.start()
    train("fails", "--timeline", "gone/t", steps=20, status=1)
    waiting.join()
    end = records_of("fails")["end"]
    assert end[0]["state"] == "failed" and "gone/t" in end[0]["reason"] and end[0]["step"] == 20, end
    text = call(PROGRAM, "report", "fails.jsonl", "--output", "fails.html")
    assert "failed at step 20" in text, text

    print("all as expected")
