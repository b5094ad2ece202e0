#!/usr/bin/env python3
"""Trains models on one accelerator and writes what the planner's prices are compared with.

usage: train.py FOLDER [--seconds 420] [--device cuda] [--small]

FOLDER gets one CSV a model, in the form of `tessera plan --price` with the measured columns
`measured_s` (median step), `measured_gib` (peak of what is allocated) and `reserved_gib`, and
`kernels.json`: rates of products, attention, copies and the optimizer. Models are plain PyTorch,
run operator by operator in bf16: gradients of microbatches are added up in f32, masters and the
moments of AdamW are f32. A run that does not fit has `inf` seconds. Which models stands in
models.py, which writes them for the planner. --small tries the program on any device.
"""
import argparse
import csv
import gc
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

import models


class Block(torch.nn.Module):
    """Attention and feed-forward network, each behind a norm and a residual sum."""

    def __init__(self, shape):
        super().__init__()
        width, fed = shape.width, shape.fed
        self.heads, self.gated = shape.heads, shape.gated
        self.norms = torch.nn.ModuleList(models.norm(shape) for _ in range(2))
        self.queries_keys_values = torch.nn.Linear(width, 3 * width, bias=False)
        self.merge = torch.nn.Linear(width, width, bias=False)
        self.widen = torch.nn.Linear(width, fed * (2 if shape.gated else 1), bias=False)
        self.narrow = torch.nn.Linear(fed, width, bias=False)

    def attend(self, x, angles):
        samples, positions, width = x.shape
        parts = self.queries_keys_values(x).view(samples, positions, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        if angles is not None:
            query, key = turned(query, *angles), turned(key, *angles)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.merge(mixed.transpose(1, 2).reshape(samples, positions, width))

    def feed(self, x):
        wide = self.widen(x)
        if not self.gated:
            return self.narrow(F.gelu(wide))
        gate, up = wide.chunk(2, -1)
        return self.narrow(F.silu(gate) * up)

    def forward(self, x, angles):
        x = x + self.attend(self.norms[0](x), angles)
        return x + self.feed(self.norms[1](x))


def turned(x, cosine, sine):
    """Rotary positions: halves of each head are turned by the position's angles."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class Model(torch.nn.Module):
    def __init__(self, shape, positions, recomputes):
        super().__init__()
        self.shape, self.recomputes = shape, recomputes
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.width)
        self.places = None if shape.gated else torch.nn.Embedding(positions, shape.width)
        self.blocks = torch.nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = models.norm(shape)
        self.head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def angles(self, positions, device):
        if not self.shape.gated:
            return None
        size = self.shape.width // self.shape.heads
        slow = 10000.0 ** (-torch.arange(0, size, 2, device=device) / size)
        angle = torch.outer(torch.arange(positions, device=device), slow)
        return angle.cos().bfloat16(), angle.sin().bfloat16()

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        angles = self.angles(tokens.shape[1], tokens.device)
        for block in self.blocks:
            if self.recomputes:
                x = torch.utils.checkpoint.checkpoint(block, x, angles, use_reentrant=False)
            else:
                x = block(x, angles)
        return self.head(self.norm(x))


class Trainer:
    """A step as training loops have it: sums in f32, clipped, AdamW on f32 masters."""

    def __init__(self, model, fused):
        self.model = model
        self.parameters = list(model.parameters())
        self.masters = [p.detach().float() for p in self.parameters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, fused=fused)

    def step(self, batches):
        for tokens, targets in batches:
            logits = self.model(tokens).float()
            F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            del logits
            for parameter, master in zip(self.parameters, self.masters):
                master.grad.add_(parameter.grad)
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
        torch._foreach_zero_([master.grad for master in self.masters])


class Device:
    def __init__(self, name):
        self.name = name
        self.cuda = name == "cuda"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def forget_peak(self):
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peaks(self):
        if not self.cuda:
            return 0, 0
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    def seconds(self, work, least=0.3):
        """Median of repetitions that together take `least` seconds, behind a warm-up."""
        work()
        self.wait()
        taken, begin = [], time.perf_counter()
        while len(taken) < 5 or time.perf_counter() - begin < least:
            one = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - one)
        return statistics.median(taken)


def measure_run(shape, run, device):
    torch.manual_seed(0)
    device.forget_peak()
    try:
        with torch.device(device.name):
            model = Model(shape, run.sequence, run.recompute).bfloat16()
            batches = [
                torch.randint(shape.vocabulary, (2, run.mbs, run.sequence)).unbind(0)
                for _ in range(run.microbatches)
            ]
        trainer = Trainer(model, device.cuda)
        taken = []
        for _ in range(5):
            device.wait()
            begin = time.perf_counter()
            trainer.step(batches)
            device.wait()
            taken.append(time.perf_counter() - begin)
        allocated, reserved = device.peaks()
        return statistics.median(taken[2:]), allocated / 2**30, reserved / 2**30
    except torch.OutOfMemoryError:
        return float("inf"), 0, 0


def product_rates(device, small):
    """Operations a second of products in bf16, (rows, columns, inner) of forward and backward."""
    rates = []
    for m, n, k in models.products(small):
        a = torch.randn(m, k, device=device.name, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=device.name, dtype=torch.bfloat16)
        g = torch.randn(m, n, device=device.name, dtype=torch.bfloat16)
        for name, work, repeats in (
            ("forward", lambda: a @ b.T, 10),
            ("input", lambda: g @ b, 10),
            ("weight", lambda: g.T @ a, 10),
        ):
            def many():
                for _ in range(repeats):
                    work()
            seconds = device.seconds(many) / repeats
            rates.append({"m": m, "n": n, "k": k, "of": name, "tflops": 2e-12 * m * n * k / seconds})
    return rates


def attention_rates(device, small):
    rates = []
    for samples, positions, heads, size in models.attentions(small):
        shape = (samples, heads, positions, size)
        q, k, v = (
            torch.randn(shape, device=device.name, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        flops = 2 * samples * heads * positions * positions * size  # causal: half of two products

        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        out = forward()
        gradient = torch.randn_like(out)
        ahead = device.seconds(lambda: [forward() for _ in range(5)]) / 5
        back = (
            device.seconds(
                lambda: [
                    torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
                    for _ in range(5)
                ]
            )
            / 5
        )
        rates.append(
            {
                "samples": samples,
                "positions": positions,
                "heads": heads,
                "size": size,
                "forward_tflops": 1e-12 * flops / ahead,
                "backward_to_forward": back / ahead,
            }
        )
    return rates


def streaming_rates(device, small):
    """Bytes a second of what only streams, by the bytes that each must read and write."""
    count = (1 << 20) if small else (1 << 28)
    a = torch.randn(count, device=device.name, dtype=torch.bfloat16)
    b = torch.randn(count, device=device.name, dtype=torch.bfloat16)
    sums = torch.zeros(count, device=device.name)
    out = torch.empty_like(a)
    rows = a.view(-1, 4096) if not small else a.view(-1, 64)
    scale = torch.ones(rows.shape[1], device=device.name, dtype=torch.bfloat16)
    works = {
        "copy": (4, lambda: out.copy_(a)),
        "sum of two": (6, lambda: torch.add(a, b, out=out)),
        "gradient into f32": (10, lambda: sums.add_(a)),
        "rms_norm": (4, lambda: F.rms_norm(rows, scale.shape, scale)),
        "layer_norm": (4, lambda: F.layer_norm(rows, scale.shape, scale)),
        "silu": (4, lambda: F.silu(a)),
    }
    return {
        name: 1e-9 * count * each / device.seconds(work) for name, (each, work) in works.items()
    }


def launch_seconds(device):
    """Host's time to start an operator of a model's forward: many on tensors of no size."""
    x = torch.ones(8, device=device.name)
    number = 2000

    def many():
        for _ in range(number):
            torch.add(x, 1)
    return device.seconds(many) / number


def block_host_seconds(device, gated):
    """Host's time of a block for one microbatch, forward, backward and sums: on tensors so small
    that the device waits. Two microbatches more, divided by blocks."""
    shape = models.Shape("host", 24, 128, 2, 256, 500, gated)
    with torch.device(device.name):
        trainer = Trainer(Model(shape, 64, False).bfloat16(), device.cuda)
        batch = tuple(torch.randint(shape.vocabulary, (2, 1, 64)).unbind(0))
    two, four = (device.seconds(lambda: trainer.step([batch] * many), 1) for many in (2, 4))
    return (four - two) / 2 / shape.layers


def logit_seconds(device, small):
    """Bytes a second of loss and its gradient, by the 56 bytes a logit that prices assume."""
    rows, vocabulary = (64, 1000) if small else (8192, 131072)
    logits = torch.randn(rows, vocabulary, device=device.name, dtype=torch.bfloat16)
    logits.requires_grad_()
    targets = torch.randint(vocabulary, (rows,), device=device.name)
    seconds = device.seconds(
        lambda: torch.autograd.grad(F.cross_entropy(logits.float(), targets), logits)
    )
    return 1e9 * seconds / logits.numel()


def kernels(device, small):
    return {
        "device": torch.cuda.get_device_name() if device.cuda else "processor",
        "torch": torch.__version__,
        "launch_us": 1e6 * launch_seconds(device),
        "block_host_us": {
            "gated" if gated else "plain": 1e6 * block_host_seconds(device, gated)
            for gated in (True, False)
        },
        "streaming_gb_per_s": streaming_rates(device, small),
        "loss_ns_per_logit": logit_seconds(device, small),
        "products": product_rates(device, small),
        "attention": attention_rates(device, small),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=420, help="no run begins after so many")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    begin = time.perf_counter()
    device = Device(options.device)
    options.folder.mkdir(parents=True, exist_ok=True)
    measured = kernels(device, options.small)
    (options.folder / "kernels.json").write_text(json.dumps(measured, indent=1) + "\n")
    print("kernels", f"{time.perf_counter() - begin:.0f} s", flush=True)
    files = {}
    for shape, run in models.runs(options.small):
        if time.perf_counter() - begin > options.seconds:
            print("no time for", shape.name, run)
            continue
        seconds, allocated, reserved = measure_run(shape, run, device)
        if shape.name not in files:
            file = open(options.folder / f"runs_{shape.name}.csv", "w", newline="", encoding="utf-8")
            files[shape.name] = (file, csv.writer(file, lineterminator="\n"))
            files[shape.name][1].writerow(models.COLUMNS)
        fits = seconds != float("inf")
        row = models.row(shape, run) + [f"{seconds:.4g}"]
        row += [f"{allocated:.2f}", f"{reserved:.2f}"] if fits else ["", ""]
        files[shape.name][1].writerow(row)
        files[shape.name][0].flush()
        print(shape.name, *row, f"{time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
