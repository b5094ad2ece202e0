#!/usr/bin/env python3
"""usage: objectives_test.py PROGRAM REPOSITORY FAMILY...

Families that learn something else than the next token: BERT and RoBERTa (masked tokens) and T5 (span
corruption). One process, pipeline, tensor and data parallelism and accumulated batches have the same
losses; a resumed run is the uninterrupted one; `eval`, `export`, `init_from`, `--check` and
`generate` know these families.
"""
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY, *KINDS = sys.argv[1:]
STEPS, WORDS, SEQUENCE, BATCH, BATCHES = 6, 400, 32, 8, 2
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Name: preset, options, the target tokens of a sample, ids of the model, its class in transformers,
# a parameter with its shape.
FAMILIES = {
    "bert": ("bert-tiny", {}, 4, WORDS + 1, "BertForPreTraining",
             ("bert.embeddings.position_embeddings.weight", [SEQUENCE, 64])),
    # Positions begin behind the padding's id, 3.
    "roberta": ("roberta-base", SMALL, 4, WORDS + 1, "RobertaForMaskedLM",
                ("roberta.embeddings.position_embeddings.weight", [SEQUENCE + 4, 64])),
    "t5": ("t5-tiny", {}, 5 + 2 + 1, WORDS + 100, "T5ForConditionalGeneration",
           ("shared.weight", [WORDS + 100, 64])),
}


def call(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stdout + done.stderr


def job_of(family, parallel, **more):
    preset, options = FAMILIES[family][:2]
    job = {
        "parallel": {"microbatches": 2, "timeout_seconds": 60, "seed": 3, **parallel},
        "model": {"name": preset, "options": options},
        "data": {"directory": "data", "sequence": SEQUENCE, "batch": BATCH},
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
        "validation": {"every": STEPS, "batches": BATCHES},
        "steps": STEPS,
    }
    for section, keys in more.items():
        job[section] = {**job.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return job


def write(name, job):
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    return name + ".json"


def train(name, job, *options, ranks=1):
    """Losses of the steps and of the last validation, and what was printed."""
    said = call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", write(name, job),
                "--log", name + ".jsonl", *options)
    with open(name + ".jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    losses = {record["step"]: record["loss"] for record in records if record["type"] == "step"}
    validations = [record["loss"] for record in records if record["type"] == "validation"]
    return [losses[step] for step in sorted(losses)], validations[-1:], said


def near(found, wanted, bound):
    furthest = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
    assert furthest < bound, (furthest, found, wanted)
    return furthest


def header_of(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size))


def check_layouts(family):
    alone, validation, said = train(family, job_of(family, {}, checkpoint={"directory": family}))
    assert len(alone) == STEPS and alone[-1] < alone[0], alone
    assert "reserved for" in said and "the tokenizer has no" in said, said
    pipeline, tensor = {"pipeline_parallel_degree": 2}, {"tensor_parallel_degree": 2, "ddp": True}
    layouts = {
        "pipeline": (pipeline, 2), "tensor": (tensor, 2), "replicas": ({"ddp": True}, 2),
        "both": ({**pipeline, **tensor}, 4),
        "memory": ({**tensor, "optimize": "memory", "prescaled_batch": True}, 2),
        "mesh": ({"tensor_parallel_degree": 4, "tensor_parallel_kind": "2d", "ddp": True,
                  "prescaled_batch": True}, 4),
    }
    for name, (parallel, ranks) in layouts.items():
        losses, other, _ = train(f"{family}_{name}", job_of(family, parallel), ranks=ranks)
        furthest = near(losses + other, alone + validation, 1e-4)
        print(f"{family}, {name}: {furthest:.1e} from one process")
    # The same samples in more, smaller batches: the number of targets is that of the samples.
    halves = job_of(family, {"microbatches": 1}, accumulation=2, data={"batch": BATCH // 2},
                    validation={"batches": 2 * BATCHES})
    losses, other, _ = train(family + "_halves", halves)
    near(losses + other, alone + validation, 1e-4)
    return alone, validation


def check_resume(family, alone, validation):
    job = job_of(family, {}, checkpoint={"directory": family + "_resumed"})
    first, _, _ = train(family + "_resumed", job, "--steps", "3")
    assert first == alone[:3], (first, alone)
    losses, other, _ = train(family + "_resumed", job, "--resume")
    assert losses == alone and other == validation, (losses, alone, other, validation)
    shown = [json.loads(call(PROGRAM, "checkpoint", "show", folder, "--json"))
             for folder in (family, family + "_resumed")]
    hashes = [next(one["state_hash"] for one in all if one["newest"]) for all in shown]
    assert hashes[0] == hashes[1], hashes
    # Another seed is another course: masks and order follow it.
    other, _, _ = train(family + "_seed", job_of(family, {"seed": 4}))
    assert other != alone


def check_tools(family, validation):
    preset, _, targets, ids, transformers, (parameter, shape) = FAMILIES[family]
    first = ["--samples", str(BATCH * BATCHES), "--sequence", str(SEQUENCE), "--json"]
    objective = "span corruption" if family == "t5" else "masked tokens"
    call(PROGRAM, "export", family, family + "_exported")
    for weights, ranks in ((family, 1), (family + "_exported", 2)):
        text = call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "eval", weights, "--data",
                    "data", *first)
        said = json.loads(text[text.index("{"):text.rindex("}") + 1])
        near([said["loss"]], validation, 2e-6)
        assert said["objective"] == objective and said["tokens"] == targets * BATCH * BATCHES, said
    with open(family + "_exported/config.json", encoding="utf-8") as file:
        config = json.load(file)
    assert config["architectures"] == [transformers] and config["vocab_size"] == ids, config
    assert config["pad_token_id"] == 3 and config["eos_token_id"] == 2, config
    header = header_of(family + "_exported/model.safetensors")
    assert header[parameter]["shape"] == shape, header[parameter]
    # Weights are a job's beginning: a step that moves nothing has their loss.
    begin = job_of(family, {"pipeline_parallel_degree": 2}, steps=1, validation={"every": 1},
                   optimizer={"type": "sgd", "learning_rate": 1e-12, "warmup_steps": 0})
    begin["model"] = {"init_from": family + "_exported"}
    near(train(family + "_begin", begin, ranks=2)[1], validation, 2e-6)
    for command in (["generate", "--checkpoint", family], ["generate", "--checkpoint", family,
                                                           "--model", preset]):
        said = call(PROGRAM, *command, "--tokenizer", "data/tokenizer.model", "--prompt", "The",
                    status=2)
        assert f"of the family {family}" in said and "tessera eval" in said, said
    if family == "t5":
        said = call(PROGRAM, "eval", family, "--data", "data", status=2)
        assert "--sequence is missing" in said, said


def check_check(family):
    targets, ids = FAMILIES[family][2:4]

    def check(job, *options, status=0):
        return call(PROGRAM, "train", write("check", job), "--check", *options, status=status)
    said = check(job_of(family, {"pipeline_parallel_degree": 2}))
    assert f", {targets} targets of " in said and "reserved for" in said, said
    assert "memory of a rank" in said and "on 2 ranks" in said, said
    said = check(job_of(family, {}, sample={"prompt": "The"}), status=2)
    assert f"of the family {family} continues no text" in said, said
    said = check(job_of(family, {}, model={"options": {"vocab_size": WORDS}}), status=2)
    assert f"vocab_size is {WORDS}" in said and f"{ids - WORDS} more ids are reserved" in said, said
    said = check(job_of(family, {}, data={"sequence": 2}), status=2)
    assert "a sequence of 2 positions" in said, said
    if family != "t5":
        said = check(job_of(family, {}, model={"options": {"max_position_embeddings": 16}}),
                     status=2)
        assert "max_position_embeddings is 16" in said and "data.sequence = 32" in said, said


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", str(WORDS), "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    for kind in KINDS:
        check_check(kind)
        course, valid = check_layouts(kind)
        check_resume(kind, course, valid)
        check_tools(kind, valid)
print("all as expected")
