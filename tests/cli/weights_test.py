#!/usr/bin/env python3
"""usage: weights_test.py PROGRAM REPOSITORY

Weights into a job and out of it: `checkpoint show` and `merge`, `export`, `eval`, `generate` from a
checkpoint's folder, and `model.init_from`. One checkpoint of 2 x 2 ranks is read as it is, merged,
exported, and divided into the files of an index: all must be the same model, on any ranks.
"""
import filecmp
import glob
import json
import os
import re
import shutil
import struct
import tempfile

import jobs
from jobs import PROGRAM, REPOSITORY, call, log_of, prepare_data

SEQUENCE, BATCH, BATCHES = 16, 8, 2
DIVIDED = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "ddp": True,
           "prescaled_batch": True}


def refused(*command, words, status=2):
    message = call(PROGRAM, *command, status=status)
    for word in words:
        assert word in message, (command, word, message)


def job_of(name, parallel, model, checkpoint, steps, rate):
    job = {
        "parallel": {"microbatches": 2, "timeout_seconds": 60, "seed": 5, **parallel},
        "model": model,
        "data": {"directory": "data", "sequence": SEQUENCE, "batch": BATCH},
        "optimizer": {"type": "sgd", "learning_rate": rate, "warmup_steps": 0, "decay": "constant",
                      "weight_decay": 0.0, "momentum": 0.0},
        "validation": {"every": steps, "batches": BATCHES},
        "steps": steps,
    }
    if checkpoint:
        job["checkpoint"] = {"directory": name}
    jobs.write_job(name, job)
    return job


def train(name, parallel, model, checkpoint=False, steps=1, rate=1e-12):
    """Losses of the steps, and of the validation after the last one."""
    job = job_of(name, parallel, model, checkpoint, steps, rate)
    ranks = parallel.get("pipeline_parallel_degree", 1) * parallel.get("tensor_parallel_degree", 1)
    losses = jobs.train(name, job, ranks)
    assert len(losses) == steps
    return losses, log_of(name, "validation")[-1]["loss"]


def resume(name, log):
    """Through launch as train(): sums over other numbers of threads differ in their last bits."""
    call(PROGRAM, "launch", "-n", "1", "--", PROGRAM, "train", name + ".json", "--resume", "--log", log)


def evaluate(weights, *options, ranks=1):
    text = call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "eval", weights, "--data", "data",
                "--sequence", str(SEQUENCE), "--json", *options)
    return json.loads(text[text.index("{"):text.rindex("}") + 1])


def near(found, expected, furthest=2e-6):
    assert abs(found - expected) <= furthest * abs(expected), (found, expected)


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    begin = 8 + size
    return metadata, {name: (entry["dtype"], entry["shape"],
                             data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
                      for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, numbers) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def divide(folder, into):
    """The same weights in two files and an index; the second is written without alignment."""
    os.mkdir(into)
    _, tensors = read_safetensors(folder + "/model.safetensors")
    names = sorted(tensors)
    files = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, own in files.items():
        write_safetensors(f"{into}/{file}", {name: tensors[name] for name in own})
    index = {"metadata": {}, "weight_map": {n: file for file, own in files.items() for n in own}}
    with open(into + "/model.safetensors.index.json", "w", encoding="utf-8") as file:
        json.dump(index, file)
    shutil.copy(folder + "/config.json", into)
    return index, names


def check_pieces(checkpoint):
    """merge finds elements that two pieces hold, and those that none holds."""
    def merged(change):
        shutil.copytree(checkpoint, "changed")
        with open("changed/meta.json", encoding="utf-8") as file:
            meta = json.load(file)
        first, second = (next(one for one in meta["tensors"] if one["name"].endswith(name))
                         for name in ("h.0.attn.c_proj.weight", "h.1.attn.c_proj.weight"))
        change(first, second)
        for _ in range(2):  # the first time its error tells the checksum of what was written
            with open("changed/meta.json", "w", encoding="utf-8") as file:
                json.dump(meta, file)
            message = call(PROGRAM, "checkpoint", "merge", "changed", "pieces.safetensors", status=1)
            found = re.search("its checksum is ([0-9a-f]{16})", message)
            meta["checksum"] = found.group(1) if found else meta["checksum"]
        shutil.rmtree("changed")
        return message

    def piece(record, rows, offset):
        record.update({"global_shape": [rows, *record["shape"][1:]], "offset": [offset, 0]})

    def lacking(first, _):
        piece(first, first["shape"][0] + 1, 0)

    def overlapping(first, second):
        second["name"] = first["name"]
        piece(first, 2 * first["shape"][0], 0)
        piece(second, 2 * first["shape"][0], 1)

    message = merged(lacking)
    assert "the files hold" in message and "h.0.attn.c_proj.weight" in message, message
    message = merged(overlapping)
    assert "both hold elements of" in message and "h.0.attn.c_proj.weight" in message, message
    assert not os.path.exists("pieces.safetensors")


def check_tools(checkpoint):
    """show, merge and export of one checkpoint; the folder that export made."""
    said = json.loads(call(PROGRAM, "checkpoint", "show", "run", "--json"))
    assert len(said) == 1 and said[0]["newest"] and said[0]["pipeline_parallel_degree"] == 2, said
    assert said[0]["user"]["step"] == 12 and "error" not in said[0], said
    shown = call(PROGRAM, "checkpoint", "show", checkpoint)
    assert "bytes, whole" in shown and "(the newest)" in shown, shown
    call(PROGRAM, "checkpoint", "merge", "run", "merged.safetensors")
    check_pieces(checkpoint)
    call(PROGRAM, "export", checkpoint, "exported", "--tokenizer", "data/tokenizer.model")
    assert sorted(os.listdir("exported")) == ["config.json", "model.safetensors", "tokenizer.model"]
    call(PROGRAM, "checkpoint", "convert", checkpoint, "converted", "--tokenizer", "data/tokenizer.model")
    assert not filecmp.dircmp("exported", "converted").diff_files
    assert sorted(os.listdir("converted")) == sorted(os.listdir("exported"))
    metadata, exported = read_safetensors("exported/model.safetensors")
    _, merged = read_safetensors("merged.safetensors")
    assert metadata == {"format": "pt"}, metadata
    assert "transformer.wte.weight" in exported and "lm_head.weight" not in exported
    assert all(merged[name] == tensor for name, tensor in exported.items())
    assert said[0]["elements"] == sum(len(numbers) // 4 for _, _, numbers in merged.values())
    call(PROGRAM, "export", "exported", "halved", "--precision", "bf16")
    assert all(dtype == "BF16" for dtype, _, _ in read_safetensors("halved/model.safetensors")[1].values())
    refused("export", checkpoint, "exported", words=["exported", "no empty folder"])
    refused("export", checkpoint, "/proc/no/such", words=["cannot make the folder '/proc/no/such'"])
    refused("checkpoint", "merge", "run", "merged.safetensors", words=["exists already"])
    refused("checkpoint", "merge", "exported", "x.safetensors", words=["no checkpoint"])
    texts = [call(PROGRAM, "generate", "--checkpoint", weights, "--tokenizer", "data/tokenizer.model",
                  "--prompt", "The", "--tokens", "6", "--temperature", "0")
             for weights in (checkpoint, "run", "exported", "exported/model.safetensors")]
    # What a model of twelve steps says may be blanks alone; that it goes on behind the prompt counts.
    assert len(set(texts)) == 1 and texts[0].startswith("The") and len(texts[0].rstrip("\n")) > 3, texts
    return "exported"


def check_evaluation(checkpoint, folder, expected):
    """The loss that training validated with, whatever form and ranks."""
    first = ["--samples", str(BATCH * BATCHES)]
    near(evaluate(checkpoint, *first)["loss"], expected)
    near(evaluate(folder, *first)["loss"], expected)
    near(evaluate("in_two", *first, ranks=2)["loss"], expected)
    with open("tensor.json", "w", encoding="utf-8") as file:
        json.dump({"tensor_parallel_degree": 2, "ddp": True, "microbatches": 2}, file)
    near(evaluate(checkpoint, *first, "--parallel", "tensor.json", ranks=2)["loss"], expected)
    # A last batch that is not full, and one with nothing that counts on the second rank.
    alone = evaluate(folder, "--samples", "10", "--batch", "1")
    assert alone["tokens"] == 10 * SEQUENCE and alone["samples"] == 10, alone
    near(evaluate(folder, "--samples", "10", "--batch", "4")["loss"], alone["loss"])
    near(evaluate(folder, "--samples", "10", "--parallel", "tensor.json", ranks=2)["loss"],
         alone["loss"])
    assert abs(alone["loss"] - expected) > 1e-4
    refused("eval", folder, "--data", "data", "--sequence", "10000", words=["10000", "longer"])
    refused("eval", "data", "--data", "data", words=["holds no weights", "model.safetensors"])
    refused("eval", "merged.safetensors", "--data", "data",
            words=["there is no config.json beside", "copy the config.json", "tessera export"])


def check_start(checkpoint, folder, expected):
    """A job that hardly moves validates as the weights that it began with."""
    seeded, other = train("seeded", {}, {"name": "gpt-tiny"})
    assert abs(other - expected) > 1e-2
    late = {**DIVIDED, "delayed_parameter_initialization": True}
    starts = {}
    for name, weights, parallel in (("alone", folder, {}), ("divided", folder, DIVIDED),
                                    ("late", folder, late), ("two", "in_two", DIVIDED),
                                    ("saved", checkpoint, {}), ("saved_late", checkpoint, late)):
        model = {"init_from": weights, "options": {"dropout": 0.0}}
        losses, validated = train(name, parallel, model)
        near(validated, expected)
        starts[name] = losses[0]
    assert abs(starts["alone"] - seeded[0]) > 1e-2
    for loss in starts.values():
        near(loss, starts["alone"])
    # What is resumed does not begin again.
    model = {"init_from": folder, "options": {"dropout": 0.0}}
    moved, _ = train("moved", {}, model, checkpoint=True, steps=2, rate=0.5)
    job_of("moved", {}, model, True, 3, 0.5)
    resume("moved", "again.jsonl")
    third = [record["loss"] for record in log_of("again", "step")]
    whole, _ = train("whole", {}, model, steps=3, rate=0.5)
    assert whole[:2] == moved and third == whole[2:], (third, moved, whole)
    # Not even when the weights are gone and the name of the newest checkpoint is lost.
    shutil.copytree(folder, "gone")
    model = {"init_from": "gone", "options": {"dropout": 0.0}}
    train("goes_on", {}, model, checkpoint=True, steps=2, rate=0.5)
    shutil.rmtree("gone")
    os.truncate("goes_on/newest", 0)
    assert "step_2" in call(PROGRAM, "checkpoint", "show", "goes_on", status=1)
    job_of("goes_on", {}, model, True, 3, 0.5)
    resume("goes_on", "on.jsonl")
    on = [record["loss"] for record in log_of("on", "step")]
    assert on == whole[2:], (on, whole)


def check_tokenizer():
    """A tokenizer that exists is used as it is, for other texts than its own."""
    text = sorted(glob.glob(REPOSITORY + "/docs/adr/*.md"))
    call(PROGRAM, "data", "prepare", "--output", "other", "--tokenizer", "exported/tokenizer.model",
         "--text", *text)
    assert "unchanged" in call(PROGRAM, "data", "prepare", "--output", "other", "--tokenizer",
                               "data/tokenizer.model", "--text", *text)
    with open("data/tokenizer.model", "rb") as one, open("other/tokenizer.model", "rb") as other:
        assert one.read() == other.read()
    refused("data", "prepare", "--output", "other", "--vocab-size", "400", "--text", *text,
            words=["holds other data"])
    refused("data", "prepare", "--output", "new", "--tokenizer", "run.json", "--text", *text,
            words=["run.json"])
    assert not os.path.exists("new")
    said = json.loads(call(PROGRAM, "eval", "exported", "--data", "other", "--samples", "4", "--json"))
    assert said["samples"] == 4 and said["sequence"] == SEQUENCE, said
    check_other_tokenizer(text)


def check_other_tokenizer(text):
    """Ids of another tokenizer are other words to the weights of a checkpoint."""
    call(PROGRAM, "data", "prepare", "--output", "foreign", "--vocab-size", "400", "--text", *text)
    both = ["run/step_12", "'foreign'", "tokenizer"]
    refused("eval", "run", "--data", "foreign", words=[*both, "data prepare --tokenizer FILE"])
    assert evaluate("exported", "--samples", "4")["samples"] == 4  # files of others do not say
    job = job_of("foreign_job", {}, {"init_from": "run"}, False, 1, 1)
    job["data"]["directory"] = "foreign"
    for check in ([], ["--check"]):
        jobs.write_job("foreign_job", job)
        refused("train", "foreign_job.json", *check,
                words=[*both, "'model.init_from'", '"other_tokenizer": true'])
    mixed = {**job, "data": {**job["data"], "mixture": [{"directory": "foreign"}]}}
    del mixed["data"]["directory"]
    jobs.write_job("mixed_job", mixed)
    refused("train", "mixed_job.json", "--check", words=both)
    job["model"]["other_tokenizer"] = True
    jobs.write_job("foreign_job", job)
    for check in ([], ["--check"]):
        said = call(PROGRAM, "train", "foreign_job.json", *check)
        assert "warning: the weights of '" in said and "run/step_12' were trained with the tokenizer" in said
    # Before the prompt is printed.
    with open("ascii.txt", "w", encoding="ascii") as file: # few pieces need few characters
        for path in text:
            with open(path, encoding="utf-8") as page:
                file.write(page.read().encode("ascii", "ignore").decode())
    call(PROGRAM, "data", "prepare", "--output", "small", "--vocab-size", "355", "--text", "ascii.txt")
    for weights, tokenizer, words in (("run", "foreign", both[:1] + ["has the tokenizer"]),
                                      ("run", "small", ["355 tokens, the model 400"]),
                                      ("exported", "small", ["355 tokens, the model 400"])):
        said = call(PROGRAM, "generate", "--checkpoint", weights, "--tokenizer",
                    tokenizer + "/tokenizer.model", "--prompt", "The rank", status=2)
        assert "The rank" not in said and all(word in said for word in words), said
    del job["model"]["init_from"]
    jobs.write_job("foreign_job", job)
    refused("train", "foreign_job.json", "--check",
            words=["'model.other_tokenizer' has no effect without 'model.init_from'"])


def check_refusals(folder, index, names):
    job_of("bad", {}, {"name": "gpt-tiny", "init_from": folder, "options": {"n_layer": 1}}, False, 1, 1)
    refused("train", "bad.json", "--check", words=["is not of this model", "h.1."])
    job_of("bad", {}, {"name": "gpt-tiny", "init_from": "run", "options": {"n_layer": 4}}, False, 1, 1)
    refused("train", "bad.json", "--check", words=["h.3."])
    job_of("bad", {}, {"name": "gpt-tiny", "init_from": "run", "options": {"n_layer": 1}}, False, 1, 1)
    refused("train", "bad.json", "--check", words=["h.1."])
    refused("train", "bad.json", words=["h.1."])
    job_of("bad", {}, {"init_from": "nowhere"}, False, 1, 1)
    refused("train", "bad.json", "--check", words=["there is no 'nowhere'"])
    for name, value, words in (("more", "one.safetensors", ["more", "it does not"]),
                               (names[0], "two.safetensors", [names[0]]),
                               (names[0], "../one.safetensors", ["no file beside it"])):
        changed = {"weight_map": {**index["weight_map"], name: value}}
        with open("in_two/model.safetensors.index.json", "w", encoding="utf-8") as file:
            json.dump(changed, file)
        refused("eval", "in_two", "--data", "data", words=words, status=1)
    torn = sorted(glob.glob("run/step_12/*.safetensors"))[0]
    os.truncate(torn, os.path.getsize(torn) - 4)
    assert "not whole" in call(PROGRAM, "checkpoint", "show", "run", status=1)
    refused("checkpoint", "merge", "run/step_12", "torn.safetensors",
            words=[os.path.basename(torn)], status=1)
    # An older checkpoint than the newest is taken by name only.
    os.mkdir("two")
    shutil.copytree("moved/step_2", "two/step_2")
    shutil.copytree("moved/step_3", "two/step_3")
    with open("two/newest", "w", encoding="utf-8") as file:
        file.write("step_3\n")
    torn = sorted(glob.glob("two/step_3/*.safetensors"))[0]
    os.truncate(torn, os.path.getsize(torn) - 4)
    refused("eval", "two", "--data", "data", words=[os.path.basename(torn), "two/step_2 to take that one"], status=1)
    assert evaluate("two/step_2", "--samples", "4")["weights"].endswith("two/step_2")
    assert not os.path.exists("torn.safetensors")


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare_data()
    learnt, validation = train("run", DIVIDED, {"name": "gpt-tiny", "options": {"dropout": 0.0}},
                               checkpoint=True, steps=12, rate=0.5)
    assert learnt[-1] < learnt[0] - 0.1, learnt
    made = check_tools("run/step_12")
    files, all_names = divide(made, "in_two")
    check_evaluation("run/step_12", made, validation)
    check_start("run/step_12", made, validation)
    check_tokenizer()
    check_refusals(made, files, all_names)
    print(f"one model in four forms: validation loss {validation:.4f}")
