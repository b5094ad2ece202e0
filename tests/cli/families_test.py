#!/usr/bin/env python3
"""usage: families_test.py PROGRAM REPOSITORY

Every family that `tessera train` trains: one process and 2 x 2 ranks of pipeline and tensor
parallelism have the same losses, and their checkpoints continue a prompt with the same text.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY = sys.argv[1:]
STEPS = 5
TYPES = {"llama-tiny": "llama", "gptj-tiny": "gptj", "gpt-neo-tiny": "gpt_neo",
         "gpt-neox-tiny": "gpt_neox"}


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(model, options, name, degrees):
    """The losses of a job, and the folder of its last checkpoint."""
    pipeline, tensor = degrees
    job = {
        "parallel": {"pipeline_parallel_degree": pipeline, "tensor_parallel_degree": tensor,
                     "ddp": tensor > 1, "microbatches": 2, "timeout_seconds": 60, "seed": 3,
                     "prescaled_batch": tensor > 1},
        "model": {"name": model, "options": {"num_hidden_layers": 2, **options}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "checkpoint": {"directory": name, "every": STEPS, "full": True},
        "steps": STEPS,
    }
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    call(PROGRAM, "launch", "-n", str(pipeline * tensor), "--", PROGRAM, "train", name + ".json",
         "--log", name + ".jsonl")
    with open(name + ".jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    found = [record["loss"] for record in records if record["type"] == "step"]
    assert len(found) == STEPS and found[-1] < found[0], (name, found)
    return found, f"{name}/step_{STEPS}"


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", "400", "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    for model, kind in TYPES.items():
        options = {"flash_attention": True} if model == "gpt-neo-tiny" else {}
        alone, one = run(model, options, model + "_alone", (1, 1))
        divided, four = run(model, options, model + "_divided", (2, 2))
        furthest = max(abs(a - b) / abs(b) for a, b in zip(divided, alone))
        print(f"{model}: 2 x 2 ranks beside one: {furthest:.1e}")
        assert furthest < 1e-4, (model, alone, divided)
        texts = []
        for folder in one, four:
            with open(folder + "/config.json", encoding="utf-8") as file:
                assert json.load(file)["model_type"] == kind
            texts.append(call(PROGRAM, "generate", "--checkpoint", folder + "/model.safetensors",
                              "--tokenizer", "data/tokenizer.model", "--prompt", "The rank",
                              "--tokens", "6", "--temperature", "0"))
        assert texts[0] == texts[1] and texts[0].startswith("The rank"), texts
