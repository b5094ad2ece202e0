#!/usr/bin/env python3
"""usage: documents_test.py PROGRAM REPOSITORY first|rest

Attention within documents (data.reset_attention_mask, data.reset_position_ids): every layout has the
losses of one process, they are other ones than those without the keys, a resumed run is the
uninterrupted one, `eval` finds a validation's loss, and folders that do not say where documents
begin are refused. The rest: further layouts, other families, a mixture of folders.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY, PART = sys.argv[1:]
STEPS, WORDS, SEQUENCE, BATCH, BATCHES = 5, 400, 32, 8, 2
KEYS = {"reset_attention_mask": True, "reset_position_ids": True}
# Attention far from even, so that a key too many shows in the loss.
SHARP = {"initializer_range": 0.15, "dropout": 0.0}
DECODER = {**SHARP, "num_hidden_layers": 2}
PIPELINE = {"pipeline_parallel_degree": 2}
TENSOR = {"tensor_parallel_degree": 2, "ddp": True}
MESH = {"tensor_parallel_degree": 4, "tensor_parallel_kind": "2d", "ddp": True}
BOTH = {**PIPELINE, **TENSOR}


def call(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stdout + done.stderr


def job_of(model="gpt-tiny", options=None, parallel=None, data=None, **more):
    job = {
        "parallel": {"microbatches": 2, "timeout_seconds": 60, "seed": 3, **(parallel or {})},
        "model": {"name": model, "options": SHARP if options is None else options},
        "data": {"directory": "data", "sequence": SEQUENCE, "batch": BATCH,
                 **(KEYS if data is None else data)},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "validation": {"every": STEPS, "batches": BATCHES},
        "steps": STEPS,
    }
    return {**job, **more}


def write(name, job):
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    return name + ".json"


def train(name, job, *options, ranks=1):
    """Losses of the steps, then of the last validation."""
    call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", write(name, job), "--log",
         name + ".jsonl", *options)
    with open(name + ".jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    losses = {record["step"]: record["loss"] for record in records if record["type"] == "step"}
    validations = [record["loss"] for record in records if record["type"] == "validation"]
    return [losses[step] for step in sorted(losses)] + validations[-1:]


def furthest(found, wanted):
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def near(what, found, wanted):
    distance = furthest(found, wanted)
    print(f"{what}: {distance:.1e} from one process")
    assert distance < 2e-5, (what, found, wanted)


def check_layouts(layouts, alone):
    for name, (parallel, more, ranks) in layouts.items():
        near(name, train("layout", job_of(parallel=parallel, **more), ranks=ranks), alone)


def check_further_layouts():
    check_layouts({
        "pipeline": (PIPELINE, {}, 2),
        "memory": ({**TENSOR, "optimize": "memory", "prescaled_batch": True}, {}, 2),
        "mesh, prescaled": ({**MESH, "prescaled_batch": True}, {}, 4),
        "recomputed": ({}, {"activation_checkpointing": "each"}, 1),
        "both, attentions recomputed": ({**BOTH, "checkpoint_attentions": True}, {}, 4),
    }, train("alone", job_of()))


def check_gpt():
    alone = train("alone", job_of(checkpoint={"directory": "alone"}))
    # Each key counts, and without them nothing has changed.
    without = train("without", job_of(data={}))
    off = {"reset_attention_mask": False, "reset_position_ids": False}
    assert train("off", job_of(data=off)) == without
    mask_only = train("mask_only", job_of(data={"reset_attention_mask": True}))
    for one, other in ((alone, without), (alone, mask_only), (mask_only, without)):
        assert furthest(one, other) > 1e-3, (one, other)
        # Ten times what layouts may differ by; 1.1e-3 was the smallest.
        assert furthest(one[-1:], other[-1:]) > 2e-4, (one, other)
    layouts = {
        "pipeline, static and fast": ({**PIPELINE, "static_mode": True, "static_mode_steps": 1,
                                       "fast_mode": True}, {}, 2),
        "tensor": (TENSOR, {}, 2),
        "mesh": (MESH, {}, 4),
        "replicas": ({"ddp": True}, {}, 2),
        "both, recomputed": (BOTH, {"activation_checkpointing": "selective"}, 4),
    }
    check_layouts(layouts, alone)
    # Without positions that begin again, over ranks as well.
    near("mask alone, tensor",
         train("mask_tensor", job_of(parallel=TENSOR, data={"reset_attention_mask": True}),
               ranks=2), mask_only)
    return alone


def check_resume(alone):
    job = job_of(checkpoint={"directory": "resumed"})
    first = train("resumed", job, "--steps", "3")
    assert first[:3] == alone[:3], (first, alone)
    assert train("resumed", job, "--resume") == alone
    # Under another layout too.
    shutil.rmtree("resumed")
    train("resumed", job, "--steps", "3")
    job["parallel"].update({"pipeline_parallel_degree": 2})
    near("resumed as a pipeline", train("resumed", job, "--resume", ranks=2)[-1:], alone[-1:])


def check_eval(alone):
    first = ["--json", "--data", "data", "--samples"]
    every = BATCH * BATCHES
    flags = ["--reset-attention-mask", "--reset-position-ids"]

    def loss(*options, ranks=1, samples=every):
        text = call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "eval", "alone", *first,
                    str(samples), *options)
        return json.loads(text[text.index("{"):text.rindex("}") + 1])["loss"]
    for ranks in (1, 2):
        assert abs(loss(*flags, ranks=ranks) - alone[-1]) < 2e-5 * alone[-1]
    # The means of two losses may be alike by accident, with some text, but not of all samples.
    for other in ([], flags[:1]):
        assert any(
            abs(loss(*other, samples=n) - loss(*flags, samples=n)) > 1e-3
            for n in (every, every // 2, every // 4)), other
    said = call(PROGRAM, "eval", "alone", *first, str(every), flags[1], status=2)
    assert "--reset-position-ids requires --reset-attention-mask" in said, said


def check_families():
    for model, options in (("llama-tiny", {"flash_attention": True}), ("gpt-neo-tiny", {})):
        options = {**DECODER, **options}
        alone = train(model, job_of(model, options))
        # How much the first loss differs depends on the text, in which documents may begin a sample.
        assert furthest(alone, train(model, job_of(model, options, data={}))) > 2e-4
        near(model, train(model, job_of(model, options, BOTH), ranks=4), alone)
    for model in ("gptj-tiny", "gpt-neox-tiny"):
        mask = {"reset_attention_mask": True}
        alone = train(model, job_of(model, DECODER, data=mask))
        near(model + ", positions again", train(model, job_of(model, DECODER)), alone)
        near(model, train(model, job_of(model, DECODER, BOTH, data=mask), ranks=4), alone)


def check_refusals():
    shutil.copytree("data", "old")
    for split in ("train", "validation"):
        os.remove(f"old/{split}.documents")
    train("old_without", job_of(data={"directory": "old"}))  # as ever
    mixed = job_of()
    mixed["data"] = {"mixture": [{"directory": "data"}, {"directory": "old"}],
                     "sequence": SEQUENCE, "batch": BATCH, **KEYS}
    for job in (job_of(data={"directory": "old", **KEYS}), mixed):
        for check in ([], ["--check"]):
            said = call(PROGRAM, "train", write("refused", job), *check, status=2)
            assert "'old' has no train.documents" in said, said
            assert "data.reset_attention_mask" in said, said
            assert "tessera data prepare --force --output old" in said, said
    said = call(PROGRAM, "eval", "alone", "--data", "old", "--reset-attention-mask", status=2)
    assert "'old' has no validation.documents" in said and "--reset-attention-mask" in said, said
    assert "data.reset_attention_mask" in call(PROGRAM, "data", "show", "old")
    # An index of other tokens.
    shutil.copy("data/validation.documents", "old/train.documents")
    said = call(PROGRAM, "train", write("refused", job_of(data={"directory": "old", **KEYS})),
                status=2)
    assert "do not belong together" in said, said
    for job, words in (
            (job_of("bert-tiny", {}), ("'data.reset_attention_mask'", "family bert", "leave")),
            (job_of("t5-tiny", {}), ("'data.reset_attention_mask'", "family t5", "leave")),
            (job_of(data={"reset_position_ids": True}), ("'data.reset_position_ids'", "both")),
            (job_of(parallel={"tensor_parallel_degree": 4, "tensor_parallel_kind": "2d",
                              "ddp": True, "mesh_memory": "managed"}),
             ("'data.reset_attention_mask'", "mesh_memory"))):
        said = call(PROGRAM, "train", write("refused", job), "--check", status=2)
        assert all(word in said for word in words), said


def check_mixture():
    """Samples of two folders with one tokenizer: over replicas as in one process."""
    call(PROGRAM, "data", "prepare", "--output", "other", "--tokenizer", "data/tokenizer.model",
         "--text", *sorted(glob.glob(REPOSITORY + "/docs/adr/*.md")))
    parts = [{"directory": "data", "weight": 0.4}, {"directory": "other", "weight": 0.6}]
    job = job_of()
    job["data"] = {"mixture": parts, "sequence": SEQUENCE, "batch": BATCH, **KEYS}
    alone = train("mixture", job)
    job["parallel"]["ddp"] = True
    near("mixture, replicas", train("mixture", job, ranks=2), alone)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    documents = []
    for path in [REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md"))]:
        with open(path, encoding="utf-8") as text:
            words = text.read().split()
        # Of one to twelve words: several in a sample, of which some begin in the one before.
        while words:
            length = len(documents) * 7 % 12 + 1
            documents.append(" ".join(words[:length]))
            words = words[length:]
    with open("texts.jsonl", "w", encoding="utf-8") as texts:
        texts.writelines(json.dumps({"text": one}) + "\n" for one in documents)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", str(WORDS), "--text",
         "texts.jsonl")
    if PART == "first":
        one_process = check_gpt()
        check_resume(one_process)
        check_eval(one_process)
        check_refusals()
    else:
        check_further_layouts()
        check_families()
        check_mixture()
print("all as expected")
