"""Run logs written by hand, for tests of what the program makes of logs."""
import json
import math
import subprocess

STARTED = "2026-01-02T03:04:05Z"
STARTED_SECONDS = 1767323045


def run_line(run_id, **changes):
    return {"type": "run", "version": 2, "run_id": run_id, "model": "gpt-small", "started": STARTED,
            "command": ["tessera", "train"], "program": "tessera 0.1.0", "data": "corpus",
            "precision": "f32", "schedule": "interleaved", "world_size": 2,
            "pipeline_parallel_degree": 1, "tensor_parallel_degree": 1, "data_parallel_degree": 2,
            "microbatches": 1, "parameters": 1000, "tokens_per_step": 512, "first_step": 1,
            "steps": 40, "flops_per_token": 0, "peak_flops_per_second": 0, "hosts": ["a", "a"],
            "config": {"steps": 40, "optimizer": {"learning_rate": 0.001}}, "plan": None, **changes}


def step_line(step, loss, **changes):
    return {"type": "step", "step": step, "loss": loss, "tokens_per_second": 1000.5,
            "step_seconds": 0.5, "lr": 0.001 / step, "memory_bytes": [1 << 20, 3 << 20],
            "elapsed_seconds": 0.5 * step, "grad_norm": 1 / step, **changes}


def loss_at(step, scale=1.0):
    return scale * (2 + 6 * math.exp(-step / 10))


def lines_of(run_id, steps=40, scale=1.0, **changes):
    """A finished run with a validation after every tenth step."""
    lines = [run_line(run_id, **changes)]
    for step in range(1, steps + 1):
        lines.append(step_line(step, loss_at(step, scale)))
        if step % 10 == 0:
            lines.append({"type": "validation", "step": step, "loss": loss_at(step, scale) + 0.25})
    lines.append({"type": "end", "state": "finished", "step": steps, "elapsed_seconds": 0.5 * steps,
                  "reason": ""})
    return lines


def write(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def call(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr
