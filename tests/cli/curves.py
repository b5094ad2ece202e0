"""One small job in ways that must give one curve, and the losses of each of its steps."""
import json

from jobs import train

STEPS = 12
REPLICAS = {"pipeline_parallel_degree": 1, "ddp": True}
SHARED_STATE = {**REPLICAS, "shard_optimizer_state": True}
SHARDED = {**REPLICAS, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1000}
TENSOR = {"pipeline_parallel_degree": 1, "tensor_parallel_degree": 2, "ddp": True,
          "prescaled_batch": True}


def job_of(ranks, parallel=None, data=None, **others):
    """The job as a pipeline of so many ranks, under these changes."""
    return {
        "parallel": {"pipeline_parallel_degree": ranks, "microbatches": 2, "timeout_seconds": 60,
                     "seed": 3, **(parallel or {})},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.0}},
        "data": {"directory": "data", "sequence": 16, "batch": 8, **(data or {})},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "steps": STEPS,
        **others,
    }


def losses(name, ranks, parallel=None, data=None, **others):
    """The loss of each step of the job under these changes."""
    found = train(name, job_of(ranks, parallel, data, **others), ranks)
    assert len(found) == STEPS and found[-1] < 0.97 * found[0], (name, found)
    return found


def cut_and_resumed(name):
    """The losses of a job of `losses` that is ended after seven steps and gone on from."""
    with open(name + ".json", encoding="utf-8") as file:
        job = {**json.load(file), "checkpoint": {"directory": name + "_cut"}}
    train(name + "_cut", job, 2, "--steps", "7")
    return train(name + "_cut", job, 2, "--resume")
