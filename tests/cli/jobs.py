"""The program as tests run it: `PROGRAM REPOSITORY [PART]` are the test's arguments."""
import glob
import json
import subprocess
import sys

PROGRAM, REPOSITORY, *PART = sys.argv[1:]


def call(*command, status=0):
    """What a command printed, with its messages where it is to fail."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stdout + done.stderr


def prepare_data(vocabulary=400):
    """Puts the texts of this repository's pages into the folder data."""
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", str(vocabulary), "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))


def write_job(name, job):
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    return name + ".json"


def log_of(name, kind):
    """The records of one kind in a run's log."""
    with open(name + ".jsonl", encoding="utf-8") as file:
        return [record for record in map(json.loads, file) if record["type"] == kind]


def train(name, job, ranks, *options):
    """Trains the job on `ranks` ranks. Returns the loss of each step."""
    call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", write_job(name, job), "--log",
         name + ".jsonl", *options)
    return [record["loss"] for record in log_of(name, "step")]


def furthest(found, wanted):
    """The largest relative difference between two lists of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
