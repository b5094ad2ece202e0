#!/usr/bin/env python3
"""usage: random_test.py PROGRAM REPOSITORY

A job with dropout and "random": "layout_independent" beside the same job on one rank: pipelines,
fast mode, replicas, sharded replicas (also of a pipeline and of tensor-parallel ranks), tensor
parallelism and a mesh have its losses.
"""
import os
import tempfile

from jobs import furthest, prepare_data, train

STEPS = 6
LAYOUTS = {
    "pipeline": {"pipeline_parallel_degree": 2, "microbatches": 4},
    "fast": {"pipeline_parallel_degree": 2, "static_mode": True, "static_mode_steps": 1,
             "fast_mode": True},
    "replicas": {},
    "sharded": {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1000},
    "tensor": {"tensor_parallel_degree": 2},
    "memory": {"tensor_parallel_degree": 2, "prescaled_batch": True, "optimize": "memory"},
    "mesh": {"tensor_parallel_degree": 2, "tensor_parallel_kind": "2d"},
}
SHARDS = {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1000,
          "sdp_reduce_bucket_size": 20000}
LAYOUTS_OF_FOUR = {
    "sharded_pipeline": {"pipeline_parallel_degree": 2, **SHARDS},
    "sharded_tensor": {"tensor_parallel_degree": 2, "prescaled_batch": True, **SHARDS},
}


def losses(name, ranks, parallel):
    """The loss of each step of the job under these keys."""
    job = {
        "parallel": {"random": "layout_independent", "seed": 3, "ddp": True, "microbatches": 2,
                     "timeout_seconds": 60, **parallel},
        "model": {"name": "gpt-tiny", "options": {"dropout": 0.3}},
        "data": {"directory": "data", "sequence": 16, "batch": 8},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "steps": STEPS,
    }
    found = train(name, job, ranks)
    assert len(found) == STEPS, (name, found)
    return found


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    one = losses("one", 1, {"microbatches": 1})
    others = losses("others", 1, {"random": "by_task"})
    assert furthest(others, one) > 1e-3, (others, one)
    for layout, keys in {**LAYOUTS, **LAYOUTS_OF_FOUR}.items():
        ranks = 4 if layout in LAYOUTS_OF_FOUR else 2
        apart = furthest(losses(layout, ranks, keys), one)
        print(f"{layout} beside one rank: {apart:.1e}")
        assert apart < 1e-4, layout
