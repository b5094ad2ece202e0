#!/usr/bin/env python3
"""The work of bench/blocks with PyTorch's own parallelisms, beside one process.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 bench/pytorch/blocks.py pipeline [--steps 20] [--json | --check]

strategy: pipeline   torch.distributed.pipelining, 1F1B, 2 stages
          gpipe      the same with GPipe's schedule
          ddp        DistributedDataParallel; gradients travel with the last microbatch
          dtensor    the blocks' inner features divided by parallelize_module (DTensor)

8 blocks x + W2 gelu(W1 x) of hidden 512 and inner 2048, 8 microbatches of 64 rows in all, f32, SGD, gloo, one
thread a rank. Every round times one process (rank 0 alone) and then the strategy, so that other load meets both
alike. Units: milliseconds. `--check` instead compares the parameters after three steps with those of one process.
Needs torch 2.8: before it, 1F1B hangs on gloo (pytorch issue 132644).
"""

import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

BLOCKS, HIDDEN, INNER, ROWS, MICROBATCHES, RATE = 8, 512, 2048, 64, 8, 1e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def net(blocks=BLOCKS):
    torch.manual_seed(5)
    return nn.Sequential(*(Block() for _ in range(blocks)))


def batch():
    torch.manual_seed(11)
    return torch.randn(MICROBATCHES * ROWS, HIDDEN), torch.randn(MICROBATCHES * ROWS, HIDDEN)


def accumulating_step(model, x, y, microbatches, before_last=contextlib.nullcontext):
    """A step that adds up the gradients of the microbatches; `before_last` holds for all but the last."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step():
        optimizer.zero_grad()
        for i, (one_x, one_y) in enumerate(zip(x.chunk(microbatches), y.chunk(microbatches))):
            with before_last() if i + 1 < microbatches else contextlib.nullcontext():
                (nn.functional.mse_loss(model(one_x), one_y) / microbatches).backward()
        optimizer.step()

    return step


def pipeline_step(x, y, schedule_class):
    from torch.distributed.pipelining import PipelineStage

    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = BLOCKS // ranks
    module = net()[rank * own:(rank + 1) * own]
    example = torch.randn(ROWS, HIDDEN)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"), input_args=(example,), output_args=(example,))
    schedule = schedule_class(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), RATE)

    def step():
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()

    return step, module


def strategy_step(name, x, y):
    """A step of the strategy, and this rank's part of the model."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if name in ("pipeline", "gpipe"):
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

        return pipeline_step(x, y, Schedule1F1B if name == "pipeline" else ScheduleGPipe)
    if name == "ddp":
        model = nn.parallel.DistributedDataParallel(net(), gradient_as_bucket_view=True)
        return accumulating_step(
            model, x.chunk(ranks)[rank], y.chunk(ranks)[rank], MICROBATCHES // ranks, model.no_sync), model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = net()
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return accumulating_step(model, x, y, MICROBATCHES), model


def check(alone_step, whole, step, part):
    """Exits unless both have the same parameters after three steps."""
    for _ in range(3):
        alone_step()
        step()
    wanted, found = list(whole.parameters()), list(part.parameters())
    first = dist.get_rank() * len(found) if len(found) < len(wanted) else 0
    for number, tensor in enumerate(found):
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        torch.testing.assert_close(tensor.detach(), wanted[first + number].detach(), rtol=1e-5, atol=1e-6)
    print(f"rank {dist.get_rank()}: {len(found)} parameters equal those of one process")


def measured(run):
    """Milliseconds until the last rank is done."""
    dist.barrier()
    start = time.perf_counter()
    run()
    dist.barrier()
    return (time.perf_counter() - start) * 1e3


def main():
    parser = argparse.ArgumentParser(description="PyTorch's parallelisms on the work of bench/blocks")
    parser.add_argument("strategy", choices=["pipeline", "gpipe", "ddp", "dtensor"])
    parser.add_argument("--steps", type=int, default=5, help="timed rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare parameters, measure nothing")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    x, y = batch()
    whole = net()
    alone_step = accumulating_step(whole, x, y, MICROBATCHES)
    step, part = strategy_step(options.strategy, x, y)
    if options.check:
        check(alone_step, whole, step, part)
        dist.destroy_process_group()
        return

    def alone():
        if dist.get_rank() == 0:
            alone_step()

    runs = {"one_process": alone, "step": step}
    times = {name: [] for name in runs}
    for number in range(-2, options.steps):
        for name, run in runs.items():
            took = measured(run)
            if number >= 0:
                times[name].append(took)
    if dist.get_rank() == 0:
        best = {name: min(values) for name, values in times.items()}
        result = {
            "benchmark": "pytorch blocks", "strategy": options.strategy, "ranks": dist.get_world_size(),
            "torch": torch.__version__,
            **{name: {"best_ms": best[name], "median_ms": statistics.median(times[name])} for name in runs},
            "over_one_process": best["step"] / best["one_process"],
        }
        if options.json:
            print(json.dumps(result))
        else:
            print(f"torch {torch.__version__}, {options.strategy}, {result['ranks']} ranks; best (median) ms")
            for name in runs:
                print(f"  {name:12} {best[name]:8.1f} ({result[name]['median_ms']:.1f})")
            print(f"  step / one process {result['over_one_process']:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
