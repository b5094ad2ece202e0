#!/usr/bin/env python3
"""usage: generate_test.py PROGRAM REPOSITORY

`tessera generate` on small GPT-2 checkpoints that this test makes. The text that
is expected comes from a forward written here, one number at a time. What the
program does not implement must be an error that names field and value.
"""
import glob
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

PROGRAM, REPOSITORY = sys.argv[1:]
WIDTH, HEADS, LAYERS, POSITIONS, VOCABULARY, TOKENS = 12, 3, 2, 12, 400, 8


def call(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done


def pieces_of(path):
    """The pieces of a SentencePiece model, by id: field 1 of the file, field 1 of each."""
    with open(path, "rb") as file:
        data = file.read()

    def number(at):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at

    def fields(at, end):
        while at < end:
            key, at = number(at)
            if key & 7 == 2:
                size, at = number(at)
                yield key >> 3, at, at + size
                at += size
            elif key & 7 == 0:
                at = number(at)[1]
            else:
                at += 4 if key & 7 == 5 else 8

    pieces = []
    for field, begin, end in fields(0, len(data)):
        if field == 1:
            piece = next(data[b:e] for f, b, e in fields(begin, end) if f == 1)
            pieces.append(piece.decode())
    return pieces


def rounded(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def random_model(drawn, words, own_head=False, inner=4 * WIDTH):
    """Tensors by name, [shape, numbers]. Dimension 0 of the last hidden state is always 1, and the
    output layer uses it to leave out all tokens but `words`."""
    def tensor(*shape, deviation=0.5, mean=0.0):
        size = math.prod(shape)
        return [list(shape), [rounded(drawn.gauss(mean, deviation)) for _ in range(size)]]

    def table():
        made = tensor(VOCABULARY, WIDTH, deviation=0.8)
        for token in range(VOCABULARY):
            made[1][token * WIDTH] = 0.0 if token in words else -60.0
        return made

    tensors = {"transformer.wte.weight": table(),
               "transformer.wpe.weight": tensor(POSITIONS, WIDTH, deviation=1.0)}
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}."
        for norm in "ln_1", "ln_2":
            tensors[f"{block}{norm}.weight"] = tensor(WIDTH, mean=1.0, deviation=0.2)
            tensors[f"{block}{norm}.bias"] = tensor(WIDTH)
        for name, rows, columns in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                    ("mlp.c_fc", WIDTH, inner), ("mlp.c_proj", inner, WIDTH)):
            tensors[f"{block}{name}.weight"] = tensor(rows, columns, deviation=0.9)
            tensors[f"{block}{name}.bias"] = tensor(columns)
    tensors["transformer.ln_f.weight"] = tensor(WIDTH, mean=1.0, deviation=0.2)
    tensors["transformer.ln_f.bias"] = tensor(WIDTH)
    tensors["transformer.ln_f.weight"][1][0] = 0.0
    tensors["transformer.ln_f.bias"][1][0] = 1.0
    if own_head:
        tensors["lm_head.weight"] = table()
    return tensors


ACTIVATIONS = {
    "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(0.0, x),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def logits_of(tensors, config, ids):
    """Logits behind the last token, from the definition of GPT-2."""
    def row(name, index):
        shape, values = tensors[name]
        return values[index * shape[1]:(index + 1) * shape[1]]

    def linear(name, x):
        columns = tensors[name + ".weight"][0][1]
        weight, bias = tensors[name + ".weight"][1], tensors[name + ".bias"][1]
        return [bias[j] + sum(x[i] * weight[i * columns + j] for i in range(len(x)))
                for j in range(columns)]

    def norm(name, x):
        mean = sum(x) / len(x)
        variance = sum((value - mean)**2 for value in x) / len(x)
        scale = 1 / math.sqrt(variance + config.get("layer_norm_epsilon", 1e-5))
        return [(value - mean) * scale * w + b for value, w, b in
                zip(x, tensors[name + ".weight"][1], tensors[name + ".bias"][1])]

    def added(x, y):
        return [a + b for a, b in zip(x, y)]

    activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    head = WIDTH // HEADS
    states = [added(row("transformer.wte.weight", token), row("transformer.wpe.weight", place))
              for place, token in enumerate(ids)]
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}."
        scale = 1 / math.sqrt(head) if config.get("scale_attn_weights", True) else 1
        if config.get("scale_attn_by_inverse_layer_idx", False):
            scale /= layer + 1
        together = [linear(block + "attn.c_attn", norm(block + "ln_1", x)) for x in states]
        after = []
        for place, x in enumerate(states):
            joined = []
            for h in range(HEADS):
                def part(which, token, h=h):
                    return together[token][which * WIDTH + h * head:which * WIDTH + (h + 1) * head]
                scores = [scale * sum(a * b for a, b in zip(part(0, place), part(1, other)))
                          for other in range(place + 1)]
                weights = [math.exp(score - max(scores)) for score in scores]
                joined += [sum(w * part(2, other)[i] for other, w in enumerate(weights)) /
                           sum(weights) for i in range(head)]
            y = added(x, linear(block + "attn.c_proj", joined))
            inner = [activation(v) for v in linear(block + "mlp.c_fc", norm(block + "ln_2", y))]
            after.append(added(y, linear(block + "mlp.c_proj", inner)))
        states = after
    last = norm("transformer.ln_f", states[-1])
    table = ("transformer.wte.weight" if config.get("tie_word_embeddings", True)
             else "lm_head.weight")
    return [sum(a * b for a, b in zip(last, row(table, token))) for token in range(VOCABULARY)]


def expected(tensors, config, pieces):
    ids, text = [2], ""  # the end of a document stands before a text
    for _ in range(TOKENS):
        logits = logits_of(tensors, config, ids)
        order = sorted(range(VOCABULARY), key=lambda token: -logits[token])
        if logits[order[0]] - logits[order[1]] < 1e-3:
            return None  # so near that rounding decides
        ids.append(order[0])
        text += pieces[order[0]]
    return text


def telling_model(config, words, pieces):
    """A model whose text is another one under this configuration, and the text."""
    for seed in range(100):
        tensors = random_model(random.Random(seed), words)
        text = expected(tensors, config, pieces)
        if text is not None and text != expected(tensors, {}, pieces):
            return tensors, text
    raise AssertionError(f"no seed tells {config} from the defaults")


def generate(tensors, config, status=0, text=None):
    write_safetensors("model.safetensors", tensors)
    with open("config.json", "w", encoding="utf-8") as file:
        file.write(json.dumps(config) if text is None else text)
    done = call(PROGRAM, "generate", "--checkpoint", "model.safetensors", "--tokenizer",
                "data/tokenizer.model", "--prompt", "", "--temperature", "0", "--tokens",
                str(TOKENS), "--config", "config.json", status=status)
    return done.stdout.strip() if status == 0 else done.stderr


def refused(tensors, config, status, *words, text=None):
    message = generate(tensors, config, status, text)
    for word in words:
        assert word in message, (config, word, message)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", str(VOCABULARY), "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    pieces = pieces_of("data/tokenizer.model")
    assert len(pieces) == VOCABULARY, len(pieces)
    words = {token for token, piece in enumerate(pieces)
             if token > 3 and piece.isascii() and piece.isalpha()}
    assert len(words) > 40, pieces
    sizes = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": POSITIONS,
             "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS}

    tied = random_model(random.Random(6), words)
    assert generate(tied, sizes) == expected(tied, sizes, pieces)
    for change in ({"activation_function": "relu"}, {"activation_function": "silu"},
                   {"activation_function": "tanh"}, {"scale_attn_weights": False},
                   {"scale_attn_by_inverse_layer_idx": True}, {"layer_norm_epsilon": 0.5}):
        tensors, wanted = telling_model({**sizes, **change}, words, pieces)
        got = generate(tensors, {**sizes, **change})
        print(change, got)
        assert got == wanted, (change, got, wanted)

    # What cannot be is refused before the prompt is printed.
    for option in ("--tokens", "--temperature", "--top-k"):
        done = call(PROGRAM, "generate", "--checkpoint", "model.safetensors", "--config", "config.json",
                    "--tokenizer", "data/tokenizer.model", "--prompt", "word", option, "-1", status=2)
        assert done.stdout == "" and "must be 0 or a number above it" in done.stderr, done

    # An output layer of its own is used, and a different one is never dropped.
    untied = random_model(random.Random(7), words, own_head=True, inner=30)
    config = {**sizes, "tie_word_embeddings": False, "n_inner": 30}
    wanted = expected(untied, config, pieces)
    assert wanted is not None
    assert wanted != expected(untied, {**config, "tie_word_embeddings": True}, pieces)
    assert generate(untied, config) == wanted
    refused(untied, {**sizes, "n_inner": 30}, 1, "lm_head.weight", "transformer.wte.weight",
            "tie_word_embeddings")
    refused(tied, {**sizes, "tie_word_embeddings": False}, 1, "lacks lm_head.weight")
    refused({**tied, "h.0.ln_1.bias": [[WIDTH], [0.5] * WIDTH]}, sizes, 1, "h.0.ln_1.bias")

    # What is not implemented, by name and value.
    refused(tied, {**sizes, "add_cross_attention": True}, 2, "add_cross_attention", "true")
    refused(tied, {**sizes, "model_type": "opt"}, 2, "model_type", "opt")
    refused(tied, {**sizes, "activation_function": "laplace"}, 2, "activation_function", "laplace")
    refused(tied, {**sizes, "logit_scale": 0.5}, 2, "logit_scale", "0.5")
    refused(tied, {}, 2, "nested deeper", text="[" * 60000 + "]" * 60000)
    refused(tied, {}, 2, "n_embd", "twice", text='{"n_embd": 12, "n_embd": 24}')
print("all as expected")
