#!/usr/bin/env python3
"""usage: families_test.py PROGRAM REPOSITORY

Every family that `tessera train` trains: one process and 2 x 2 ranks of pipeline and tensor
parallelism have the same losses, and their checkpoints continue a prompt with the same text.
"""
import json
import os
import tempfile

from jobs import PROGRAM, call, furthest, prepare_data, train

STEPS = 5
TYPES = {"llama-tiny": "llama", "gptj-tiny": "gptj", "gpt-neo-tiny": "gpt_neo",
         "gpt-neox-tiny": "gpt_neox"}


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
    found = train(name, job, pipeline * tensor)
    assert len(found) == STEPS and found[-1] < found[0], (name, found)
    return found, f"{name}/step_{STEPS}"


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    for model, kind in TYPES.items():
        options = {"flash_attention": True} if model == "gpt-neo-tiny" else {}
        alone, one = run(model, options, model + "_alone", (1, 1))
        divided, four = run(model, options, model + "_divided", (2, 2))
        apart = furthest(divided, alone)
        print(f"{model}: 2 x 2 ranks beside one: {apart:.1e}")
        assert apart < 1e-4, (model, alone, divided)
        texts = []
        for folder in one, four:
            with open(folder + "/config.json", encoding="utf-8") as file:
                assert json.load(file)["model_type"] == kind
            texts.append(call(PROGRAM, "generate", "--checkpoint", folder + "/model.safetensors",
                              "--tokenizer", "data/tokenizer.model", "--prompt", "The rank",
                              "--tokens", "6", "--temperature", "0"))
        assert texts[0] == texts[1] and texts[0].startswith("The rank"), texts
