#!/usr/bin/env python3
"""usage: job_test.py PROGRAM REPOSITORY

Job files of `tessera train`: how errors are told, comments, `--set`, what `--check` finds without
training and what memory and time it forecasts, and the config.json beside saved weights.
"""
import copy
import glob
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY = sys.argv[1:]
BASE = {
    "parallel": {"pipeline_parallel_degree": 1, "microbatches": 2, "timeout_seconds": 60},
    "model": {"name": "gpt-tiny", "options": {"dropout": 0.0}},
    "data": {"directory": "data", "sequence": 16, "batch": 8},
    "optimizer": {"learning_rate": 2e-3, "warmup_steps": 1},
    "steps": 2,
}


def run(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def check(text, *options, status=0):
    with open("job.json", "w", encoding="utf-8") as file:
        file.write(text if isinstance(text, str) else json.dumps(text))
    return run(PROGRAM, "train", "job.json", "--check", *options, status=status)


def refused(text, *words, options=()):
    message = check(text, *options, status=2)
    for word in words:
        assert word in message, (text, word, message)


def changed(**sections):
    job = copy.deepcopy(BASE)
    for name, keys in sections.items():
        if isinstance(keys, dict):
            job[name] = {**job.get(name, {}), **keys}
        else:
            job[name] = keys
    return job


def memory(*options, **sections):
    """The table of --check: a list of numbers in MiB for each pipeline rank."""
    lines = check(changed(**sections), *options).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("pipeline rank")) + 1
    rows = []
    while lines[begin].split()[0].isdigit():
        rows.append([float(number) for number in lines[begin].split()[1:]])
        begin += 1
    assert rows, lines
    return rows


def near(found, wanted, bound=0.06):
    assert abs(found - wanted) <= bound, (found, wanted)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    run(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", "400", "--text",
        REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    assert "job.json is a valid job" in check(BASE)

    # The file: both places of a key, the nearest key, comments, last commas, depth.
    refused('{"steps": 2,\n "data": {"batch": 8,\n  "batch": 4}, "modle": {},\n "log_evry": 1}',
            '"batch": stands twice', "line 2, column 11", "line 3, column 3",
            "unknown field 'modle'; the nearest is 'model'", "'log_every'", "'data.directory'")
    refused(changed(optimizer={"lr": 1e-3}),
            "unknown field 'optimizer.lr'; the nearest is 'optimizer.learning_rate'")
    refused({"pipeline_parallel_degree": 2, "microbatches": 4},
            "this is a configuration of the library, not a job")
    refused({"version": 1, "degrees": {}, "partition": {}}, "this is a plan file, not a job")
    refused(changed(optimizer={"zzzz": 1}), "unknown field 'optimizer.zzzz'; the known ones are type, "
            "learning_rate, min_learning_rate")
    refused(changed(model={"name": "bert-tiny", "options": {"dropout": 0.0}}),
            '"dropout": unknown field; the known ones are vocab_size', "hidden_dropout_prob")
    refused(changed(activation_checkpointing="group_0"), "'activation_checkpointing' is 'group_0'",
            '"each", "selective", "contiguous" or "group_x"')
    # The forecast counts activations that are kept, and says what it does not count.
    most = "counted as if all were kept"
    assert most not in check(BASE)
    assert most in check(changed(activation_checkpointing="selective"))
    assert most in check(BASE, "--set", "parallel.checkpoint_attentions=true")
    commented = json.dumps(BASE, indent=1).replace('"steps": 2', '"steps": 2, // two\n/* end */')
    assert "//" in commented
    check(commented)
    refused(commented + "/* open", "does not end")
    refused('{"model": {"options": ' + '{"a":' * 60000 + "1" + "}" * 60000 + "}}", "nested deeper")
    refused('{"steps": 2', "not valid JSON", "line 1")

    with open("job.json", "w", encoding="utf-8") as file:
        file.write(commented)
    said = run(PROGRAM, "config", "--check", "job.json", status=2)
    assert "write tessera train job.json --check" in said, said

    # Settings over it are typed and checked as the file is.
    assert "on 2 ranks: 2 pipeline" in check(
        BASE, "--set", "parallel.pipeline_parallel_degree=2", "--set", "data.batch=4")
    assert "gpt-mini of" in check(BASE, "--set", "model.name=gpt-mini")
    assert "1.00 times" not in check(BASE, "--set", "model.options.n_layer=1")
    for setting, word in (("data.batch=x", "'data.batch' must be an integer"),
                          ("data.batch=0", "'data.batch'"), ("data.bach=8", "'data.batch'"),
                          ("steps.more=1", "'steps' is 2, which has no keys"),
                          ("steps", "write KEY=VALUE"), ("data..batch=1", "empty part"),
                          ("model.options={", "not valid JSON"),
                          ("optimizer.type=adamm",
                           'must be "adamw", "adamw_8bit", "adam", "lamb", "novograd" or "sgd"')):
        refused(BASE, word, options=("--set", setting))
    # What is long is shown by its beginning, here and where a value is checked.
    long = "x" * 100_000
    for settings in ((f"steps.{long}=1",), (f"seed={long}", "seed.more=1"), (f"model.name={long}",),
                     (f"data.directory={long}",), (f"activation_checkpointing={long}",)):
        options = [word for setting in settings for word in ("--set", setting)]
        message = check(BASE, *options, status=2)
        assert "xxx" in message and len(message) < 3000, (settings[0][:60], len(message))
    assert f"--set {'x' * 200}... (100000 bytes): write KEY=VALUE" in check(
        BASE, "--set", long, status=2)

    for job in (changed(optimizer={"type": "adamw_8bit", "stochastic_rounding": True}),
                changed(optimizer={"stochastic_rounding": True}, precision="bf16"),
                changed(optimizer={"type": "adamw_8bit", "stochastic_rounding": True},
                        precision="fp16")):
        refused(job, "'optimizer.stochastic_rounding' is true", 'write "adamw_8bit" and "bf16"')

    # All that needs no training.
    refused(changed(model={"name": "gpt-mimi"}), "gpt-mimi", 'the nearest is "gpt-mini"')
    refused(changed(model={"name": "ncf", "options": {}}), "of the family ncf", "the data are texts")
    refused(changed(model={"options": {"n_layer": "two"}}), 'n_layer: found "two"')
    refused(changed(model={"options": {"n_layr": 2}}), '"n_layr"', '"n_layer"')
    refused(changed(model={"options": {"n_head": 5}}), "not a multiple of n_head = 5")
    refused(changed(model={"options": {"n_embd": 10**9}}), "n_embd", "from 1 to 1048576")
    refused(changed(model={"options": {"vocab_size": 2**40}}), "vocab_size", "from 2 to 2147483647")
    refused(changed(model={"options": {"n_positions": 8}}), "n_positions is 8", "sequence = 16")
    refused(changed(model={"options": {"vocab_size": 100}}), "vocab_size is 100", "400 tokens")
    refused(changed(data={"directory": "nowhere"}, model={"name": "gpt-mimi"}),
            "nowhere/train.tokens", "nowhere/validation.tokens", "gpt-mimi")
    refused(changed(data={"sequence": 10**7}), "one sample needs 10000001")
    refused(changed(data={"batch": 6}), "need a multiple of 4",
            options=("--ranks", "2", "--set", "parallel.ddp=true"))
    refused(changed(parallel={"pipeline_parallel_degree": 2}), "2", options=("--ranks", "3"))
    refused(changed(parallel={"pipeline_parallel_degree": 2, "auto_partition": False,
                              "default_partition": 0, "partition": {"transformer.x": 1}}),
            "transformer.x")
    # The folder of the checkpoints: nothing is made, and what is in the way is found.
    assert "is a valid job" in check(changed(checkpoint={"directory": "not/yet"}))
    assert not os.path.exists("not")
    with open("in_the_way", "w", encoding="utf-8"):
        pass
    for folder in ("/proc/none", "in_the_way", "in_the_way/below"):
        refused(changed(checkpoint={"directory": folder}),
                f"'checkpoint.directory' {folder} cannot be written")
    assert not [name for name in os.listdir(".") if name.startswith(".probe")]
    # What the first step refuses, as it says it.
    managed = {"tensor_parallel_degree": 2, "ddp": True, "tensor_parallel_kind": "2d",
               "mesh_memory": "managed"}
    check(changed(parallel=managed))
    refused(changed(parallel=managed, model={"options": {"dropout": 0.1}}), "has no form for dropout",
            "model.options.dropout is 0.1", '"dropout": 0.0')
    refused(changed(parallel=managed, model={"name": "llama-tiny"}), "is for the family gpt")
    many = {"pipeline_parallel_degree": 30, "microbatches": 8}
    refused(changed(parallel=many), "of 30 would own no parameter", "allow_ranks_without_parameters")
    crowd = check(changed(parallel={"pipeline_parallel_degree": 1000}), status=2)
    assert " more of 1000 would own no parameter" in crowd and len(crowd) < 1000, crowd
    assert "is a valid job" in check(
        changed(parallel={**many, "allow_ranks_without_parameters": True}))
    refused(changed(loss_scale={"init_scale": 8.0}), "'loss_scale' has no effect")
    refused(changed(precision="fp16", loss_scale={"scale_factor": 0.5, "window": 3}),
            "'loss_scale.window'", "scale_window")
    refused(changed(precision="fp16", loss_scale={"scale_factor": 0.5}), "scale_factor is 0.5")
    refused(changed(precision="fp16", parallel={"bf16": True}), "'parallel.bf16' is true")
    refused(changed(parallel={"fp32_grad_accumulation": True}), "is about 16-bit parameters")
    for precision in ("fp16", "bf16"):
        assert "is a valid job" in check(
            changed(precision=precision, parallel={"_fp32_grad_accumulation": True}))
    refused(changed(parallel={"fp16": True}), "'parallel.fp16' is true", 'write "precision": "fp16"')
    refused(changed(model={"name": "gpt3-175b", "options": {}}), "gpt3-175b", "GiB on this machine")
    with open("data/train.tokens", "r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    refused(BASE, "train.tokens has changed")
    with open("data/train.tokens", "r+b") as file:
        file.seek(100)
        file.write(byte)

    # Memory: from the sizes of the model, worked out here.
    width, layers, words, positions = 96, 3, 400, 16
    block = 12 * width * width + 13 * width
    whole = (words + positions) * width + layers * block + 2 * width
    mib = whole * 4 / 2**20
    (row,) = memory()
    for found, wanted in zip(row, (mib, mib, 2 * mib)):
        near(found, wanted)
    activations = row[3]
    # At least the inputs of every product of 4 samples in a microbatch.
    assert activations > 4 * positions * layers * 8 * width * 4 / 2**20, row
    near(row[5], sum(row[:5]), 0.3)
    near(memory(optimizer={"type": "lamb"})[0][2], 3 * mib)  # two moments, and all updates at once
    near(memory(optimizer={"type": "sgd"})[0][2], mib)
    near(memory(optimizer={"type": "sgd", "momentum": 0.0})[0][2], 0)
    (half,) = memory(precision="bf16")
    for found, wanted in zip(half, (mib / 2, 1.5 * mib, 3 * mib)):
        near(found, wanted)
    (half,) = memory(precision="fp16")
    for found, wanted in zip(half, (mib / 2, 1.5 * mib, 3 * mib)):
        near(found, wanted)
    # Two bytes and two 256ths of an f32 for each element of a matrix; small tensors have f32.
    large = words * width + layers * 12 * width * width
    moments = (large * 2 * (1 + 4 / 256) + (whole - large) * 8) / 2**20
    eight_bits = {"type": "adamw_8bit"}
    for found, wanted in zip(memory(optimizer=eight_bits)[0], (mib, mib, moments)):
        near(found, wanted)
    (half,) = memory(optimizer=eight_bits, precision="bf16")
    for found, wanted in zip(half, (mib / 2, 1.5 * mib, moments + mib)):
        near(found, wanted)
    in_f32 = {"fp32_grad_accumulation": True}
    (half,) = memory(precision="bf16", parallel=in_f32)
    for found, wanted in zip(half, (mib / 2, 2 * mib, 3 * mib)):
        near(found, wanted)
    eight_bits["stochastic_rounding"] = True
    (half,) = memory(optimizer=eight_bits, precision="bf16", parallel=in_f32)
    near(half[1], mib)
    (half,) = memory(optimizer=eight_bits, precision="bf16")
    for found, wanted in zip(half, (mib / 2, mib / 2, moments)):
        near(found, wanted)
    near(memory(data={"batch": 16})[0][3], 2 * activations, 0.2)
    near(memory(parallel={"microbatches": 4})[0][3], activations / 2, 0.2)
    near(memory("--ranks", "2", parallel={"ddp": True})[0][3], activations / 2, 0.2)
    # Of divided parameters a half, and in a step the bucket that fills (all of them), the gradient of
    # one layer, and two buckets that have left with the parts of them.
    (shards,) = memory("--ranks", "2", parallel={
        "ddp": True, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 1})
    near(shards[0], mib / 2)
    assert 0.1 < shards[1] - (mib / 2 + mib + 3 * mib) < 0.2 * mib, (shards, mib)
    two = memory(parallel={"pipeline_parallel_degree": 2})
    assert len(two) == 2 and all(0.2 * mib < part[0] < 0.8 * mib for part in two), two
    near(sum(part[0] for part in two), mib, 0.15)
    (tensor,) = memory(parallel={"tensor_parallel_degree": 2, "ddp": True})
    assert 0.45 * mib < tensor[0] < 0.75 * mib, (tensor, mib)

    # Time: only from a cluster that somebody measured or described.
    assert "time: unknown; measure" in check(BASE)
    with open("cluster.json", "w", encoding="utf-8") as file:
        json.dump({"name": "two", "devices": {"t4": {"memory_gib": 15}},
                   "nodes": [{"device": "t4", "count": 2, "intra_node_gbit_per_s": 50,
                              "inter_node_gbit_per_s": 10}]}, file)
    two_ranks = changed(parallel={"pipeline_parallel_degree": 2})
    said = check(two_ranks, "--cluster-file", "cluster.json")
    assert "time: about 0:00:0" in said and "the speeds in cluster.json" in said, said
    assert "unknown: the cluster file describes 2 devices, the job has 1 ranks" in check(
        BASE, "--cluster-file", "cluster.json")
    with open("torn.json", "w", encoding="utf-8") as file:
        file.write('{"name": "two", "devices"')
    refused(BASE, "torn.json", options=("--cluster-file", "torn.json"))
    assert "decides it on the ranks" in check(
        changed(strategy="auto", parallel={"microbatches": 1}))

    # What all ranks find, before and behind their first exchange, one says, and all end together.
    with open("world.json", "w", encoding="utf-8") as file:
        json.dump(BASE, file)
    with open("folder.json", "w", encoding="utf-8") as file:
        json.dump(changed(parallel={"ddp": True}, data={"directory": "missing"}), file)
    for job, words in (("world.json", "ddp is false"), ("folder.json", "does not exist")):
        said = run(PROGRAM, "launch", "-n", "2", "--", PROGRAM, "train", job, status=2)
        assert said.count(words) == 1 and "still ran" not in said, said

    # What a run writes: the job as it ran, and a config.json that transformers loads.
    trained = changed(checkpoint={"directory": "saved", "full": True},
                      model={"options": {"dropout": 0.25, "n_inner": 100}})
    with open("job.json", "w", encoding="utf-8") as file:
        json.dump(trained, file)
    run(PROGRAM, "launch", "-n", "1", "--", PROGRAM, "train", "job.json", "--log", "log.jsonl",
        "--set", "optimizer.beta2=0.99", "--set", "data.batch=4")
    with open("log.jsonl", encoding="utf-8") as file:
        logged = json.loads(file.readline())["config"]
    assert logged["optimizer"]["beta2"] == 0.99 and logged["data"]["batch"] == 4, logged
    assert logged["parallel"]["microbatches"] == 2 and "placement_strategy" in logged["parallel"]
    assert os.path.exists("saved/step_2/model.safetensors")
    assert "saved holds checkpoints: the job goes on from them with --resume" in check(trained)
    with open("saved/step_2/config.json", encoding="utf-8") as file:
        config = json.load(file)
    wanted = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 400,
              "n_positions": 16, "n_embd": 96, "n_layer": 3, "n_head": 4, "n_inner": 100,
              "activation_function": "gelu_new", "resid_pdrop": 0.25, "embd_pdrop": 0.25,
              "attn_pdrop": 0.25, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
              "scale_attn_weights": True, "eos_token_id": 2}
    assert {key: config.get(key) for key in wanted} == wanted, config
    assert "dropout" not in config
    said = run(PROGRAM, "generate", "--checkpoint", "saved/step_2/model.safetensors", "--tokenizer",
               "data/tokenizer.model", "--prompt", "The rank", "--tokens", "3")
    assert said.startswith("The rank"), said
    with open("deep.json", "w", encoding="utf-8") as file:
        file.write("[" * 60000 + "]" * 60000)
    said = run(PROGRAM, "report", "log.jsonl", "--timeline", "deep.json", "--output", "report.html",
               status=1)
    assert "nested deeper" in said, said
    for command in (("plan", "--model-file", "deep.json", "--cluster-file", "cluster.json"),
                    ("plan", "--model", "gpt-tiny", "--global-batch-size", "8", "--cluster-file",
                     "deep.json"),
                    ("config", "--check", "deep.json"), ("train", "deep.json", "--check")):
        assert "nested deeper" in run(PROGRAM, *command, status=2)
print("all as expected")
