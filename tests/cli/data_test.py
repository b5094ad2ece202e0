#!/usr/bin/env python3
"""usage: data_test.py PROGRAM REPOSITORY

`tessera data prepare` and `data show`: inputs of every kind give the tokens that this test works
out itself, what is wrong is named with its place, and a tokenizer.json that this test makes gives
the ids of the naive tokenizers below, in training, generation, evaluation and export.
"""
import array
import glob
import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

PROGRAM, REPOSITORY = sys.argv[1:]
END = "<|endoftext|>"


def call(*command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def prepare(*options, status=0):
    return call(PROGRAM, "data", "prepare", *options, status=status)


def refused(*options, words):
    message = prepare("--output", "refused", *options, status=2)
    for word in words:
        assert word in message, (options, word, message)
    assert not os.path.exists("refused/data.json")
    assert not os.path.exists("refused") or not os.listdir("refused"), os.listdir("refused")


def write(path, content):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def tokens_of(path):
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"TSRTOKEN"
    width, count = struct.unpack("<IQ", data[12:24])
    values = array.array({2: "H", 4: "I"}[width], data[64:])
    assert len(values) == count
    return list(values)


def begins_of(path):
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"TSRDOCUM"
    count, tokens = struct.unpack("<QQ", data[16:32])
    values = array.array("Q", data[64:])
    assert len(values) == count
    return list(values), tokens


# --- naive tokenizers -------------------------------------------------------------------------

def is_space(char):
    # White_Space of Unicode; str.isspace has U+001C to U+001F besides.
    return char.isspace() and not "\x1c" <= char <= "\x1f"


def kind(char):
    category = unicodedata.category(char)
    return "L" if category[0] == "L" else "N" if category[0] == "N" else (
        " " if is_space(char) else "x")


def gpt2_words(text):
    """The splitter of GPT-2, without a regular expression."""
    words, at = [], 0
    while at < len(text):
        for ending in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
            if text.startswith(ending, at):
                words.append(ending)
                break
        else:
            first = at + 1 if text[at] == " " and at + 1 < len(text) and kind(
                text[at + 1]) != " " else at
            end = first
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
            # A run of white space leaves its last one to the word behind it.
            if kind(text[first]) == " " and end < len(text) and end - first > 1:
                end -= 1
            words.append(text[at:end])
        at += len(words[-1])
    return words


def spelled_bytes():
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in seen]
    return {**{byte: chr(byte) for byte in seen},
            **{byte: chr(256 + i) for i, byte in enumerate(others)}}


SPELLING = spelled_bytes()


def merged(parts, ranks):
    parts = list(parts)
    while len(parts) > 1:
        best = min(range(len(parts) - 1),
                   key=lambda i: ranks.get((parts[i], parts[i + 1]), len(ranks)))
        if (parts[best], parts[best + 1]) not in ranks:
            break
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return parts


def train_bpe(text, count):
    """Merges, the most frequent pair first; of equal ones the least."""
    words = {}
    for word in gpt2_words(text):
        key = tuple(SPELLING[byte] for byte in word.encode())
        words[key] = words.get(key, 0) + 1
    ranks = {}
    for _ in range(count):
        pairs = {}
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        ranks[best] = len(ranks)
        changed = {}
        for word, times in words.items():
            new = tuple(merged(word, {best: 0}))
            changed[new] = changed.get(new, 0) + times
        words = changed
    return ranks


class Bpe:
    def __init__(self, text, count):
        self.ranks = train_bpe(text, count)
        tokens = [SPELLING[byte] for byte in range(256)]
        for pair in self.ranks:
            tokens.append("".join(pair))
        self.ids = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
        self.end = len(self.ids)

    def encode(self, text):
        ids = []
        for number, part in enumerate(text.split(END)):
            ids += [self.end] * (number > 0)
            for word in gpt2_words(part):
                ids += [self.ids[token]
                        for token in merged((SPELLING[byte] for byte in word.encode()), self.ranks)]
        return ids

    def json(self):
        return {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
            "added_tokens": [{"id": self.end, "content": END, "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": True, "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            "model": {"dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "vocab": self.ids,
                      "merges": [" ".join(pair) for pair in self.ranks]}}


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


class WordPiece:
    def __init__(self, text, pieces):
        words = self.words(text)
        tokens = list(SPECIAL)
        tokens += sorted({char for word in words for char in word if char != "q"})
        tokens += sorted({"##" + char for word in words for char in word[1:] if char != "q"})
        counts = {}
        for word in words:
            for size in range(2, len(word) + 1):
                counts[word[:size]] = counts.get(word[:size], 0) + 1
                counts["##" + word[-size:]] = counts.get("##" + word[-size:], 0) + 1
        tokens += sorted(counts, key=lambda token: (-counts[token], token))[:pieces]
        self.ids = {token: i for i, token in enumerate(dict.fromkeys(tokens))}

    @staticmethod
    def words(text):
        plain = ""
        for char in text:
            category = unicodedata.category(char)
            if char in "\t\n\r":
                plain += " "
            elif char != "\ufffd" and category[0] != "C":
                chinese = "\u4e00" <= char <= "\u9fff"
                plain += " " + char + " " if chinese else " " if is_space(char) else char
        plain = "".join(char for char in unicodedata.normalize("NFD", plain)
                        if unicodedata.category(char) != "Mn")
        plain = "".join(char.lower() for char in plain)
        words = []
        for chunk in plain.split(" "):
            word = ""
            for char in chunk:
                mark = unicodedata.category(char)[0] == "P" or char in "$+<=>^`|~"
                if mark:
                    words += [word, char]
                    word = ""
                else:
                    word += char
            words.append(word)
        return [word for word in words if word]

    def encode(self, text):
        ids = []
        for part in re.split(r"(\[(?:PAD|UNK|CLS|SEP)\])", text):  # marks in a text are marks
            ids += [self.ids[part]] if part in SPECIAL else self.pieces(part)
        return ids

    def pieces(self, text):
        ids = []
        for word in self.words(text):
            found, begin = [], 0
            while begin < len(word) and found is not None:
                for end in range(len(word), begin, -1):
                    token = ("##" if begin else "") + word[begin:end]
                    if token in self.ids:
                        found.append(self.ids[token])
                        begin = end
                        break
                else:
                    found = None
            ids += [self.ids["[UNK]"]] if found is None or len(word) > 100 else found
        return ids

    def json(self):
        return {
            "added_tokens": [{"id": i, "content": name, "normalized": False, "special": True}
                             for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])],
            "normalizer": {"type": "BertNormalizer", "clean_text": True,
                           "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": [], "pair": [],
                               "special_tokens": {}},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": self.ids}}


# --- checks -----------------------------------------------------------------------------------

def expected(documents, encode, end):
    """Training and validation tokens of documents that are one section each."""
    train, validation, begins = [], [], []
    for number, text in enumerate(documents):
        if number % 20 == 10:
            validation += encode(text) + [end]
        else:
            begins.append(len(train))
            train += encode(text) + [end]
    return train, validation, begins


def check_folder(folder, documents, encode, end):
    train, validation, begins = expected(documents, encode, end)
    assert tokens_of(folder + "/train.tokens") == train, folder
    assert tokens_of(folder + "/validation.tokens") == validation, folder
    assert begins_of(folder + "/train.documents") == (begins, len(train)), folder
    shown = call(PROGRAM, "data", "show", folder)
    assert f"documents:   {len(documents)}\n" in shown, shown
    assert f"{len(train)} tokens in {len(begins)} documents" in shown, shown


def texts():
    """Documents of less than a section: lines of the repository and hard cases."""
    lines = []
    for name in "README.md", "docs/training.md":
        with open(f"{REPOSITORY}/{name}", encoding="utf-8") as file:
            lines += file.read().split("\n\n")
    hard = ["  two  spaces\t\n\n x\u00a0y\u3000z ", "caf\u00e9 cafe\u0301 \u4e2d\u6587 \ud55c\uad6d",
            "\U0001f600 1234567 \u0661\u00bd we'll DON'T don't 'tis", f"a{END}b {END}", "\u0130\u00df\u1e9e",
            "x\u200by\u00adz \u2028 \ufffd", "a" * 90 + "b" * 40, "\u0391\u03a3 \U0001d49c\u0301", "'", "\n", "q q!"]
    return [text for text in lines if 0 < len(text.encode()) < 4000] + hard


def check_json_tokenizers(documents):
    write("docs.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in documents))
    for name, tokenizer, end in (("bpe", Bpe("\n".join(documents), 200), END),
                                 ("pieces", WordPiece("\n".join(documents), 300), "[SEP]")):
        said = tokenizer.json()
        write(f"{name}.json", json.dumps(said))
        prepare("--output", name, "--text", "docs.jsonl", "--tokenizer", f"{name}.json")
        known = next(token["id"] for token in said["added_tokens"] if token["content"] == end)
        check_folder(name, documents, tokenizer.encode, known)
        assert "tokenizer.json" in call(PROGRAM, "data", "show", name)
        # As many threads as one likes, the same bytes.
        prepare("--output", name + "3", "--text", "docs.jsonl", "--tokenizer", f"{name}.json",
                "--threads", "3")
        for file in os.listdir(name):
            with open(f"{name}/{file}", "rb") as one, open(f"{name}3/{file}", "rb") as other:
                assert one.read() == other.read(), (name, file)
    broken = {**Bpe("ab", 1).json(), "normalizer": {"type": "Precompiled"}}
    write("broken.json", json.dumps(broken))
    refused("--text", "docs.jsonl", "--tokenizer", "broken.json",
            words=["normalizer.type", "Precompiled", "not implemented"])


def check_inputs(documents):
    lines = [json.dumps({"id": i, "content": text}) + "\n" for i, text in enumerate(documents)]
    half = len(lines) // 2
    write("in/b/2.jsonl.gz", gzip.compress("".join(lines[half:]).encode()))
    write("in/a.jsonl", "".join(lines[:half]))
    options = ["--text", "in", "--field", "content", "--tokenizer", "bpe.json"]
    prepare("--output", "mixed", *options)
    for file in "train.tokens", "validation.tokens", "train.documents":
        with open("bpe/" + file, "rb") as one, open("mixed/" + file, "rb") as other:
            assert one.read() == other.read(), file
    assert "(unchanged)" in prepare("--output", "mixed", *options)
    assert "unchanged" not in prepare("--output", "mixed", *options, "--force")
    # A file that is named first comes first.
    prepare("--output", "turned", "--text", "in/b", "in/a.jsonl", *options[2:])
    check_folder("turned", documents[half:] + documents[:half], Encoders.bpe.encode,
                 Encoders.bpe.end)
    write("in/a.jsonl", "".join(lines[:2]) + '{"id": 3}\n')
    refused(*options, words=["in/a.jsonl, line 3", '"content"', "--field"])
    write("in/a.jsonl", "".join(lines[:half]))
    write("in/b/2.jsonl.gz", gzip.compress("".join(lines[half:]).encode())[:-20])
    refused(*options, words=["in/b/2.jsonl.gz", "truncated"])
    refused("--text", write("latin.txt", b"one\ncaf\xe9\n"), words=["latin.txt, line 2", "UTF-8"])
    write("in/b/2.jsonl.gz", gzip.compress("".join(lines[half:]).encode()))


def npy(values, kind="<u4", shape=None):
    shape = shape or f"({len(values)},)"
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    code = {"u2": "H", "u4": "I", "i8": "q", "f4": "f"}[kind[1:]]
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
            struct.pack(f"{kind[0]}{len(values)}{code}", *values))


def check_tokens():
    end = Encoders.bpe.end
    ids = [end if i % 700 == 699 else i * 7 % 256 for i in range(30000)]
    held = [*range(10 * 1024, 11 * 1024)]
    train = [token for i, token in enumerate(ids) if i not in set(held)]
    for name, content, more in (
            ("ids.npy", npy(ids), []), ("ids8.npy", npy(ids, "<i8"), []),
            ("big.npy", npy(ids, ">u2"), []),
            ("ids.u16", struct.pack("<30000H", *ids), ["--token-type", "uint16"]),
            ("ids.u32", struct.pack("<30000I", *ids), ["--token-type", "uint32"])):
        write(name, content)
        folder = "of_" + name.replace(".", "_")
        said = prepare("--output", folder, "--tokens", name, "--tokenizer", "bpe.json", *more)
        assert "43 documents" in said, said
        assert tokens_of(folder + "/train.tokens") == train, name
        assert tokens_of(folder + "/validation.tokens") == [ids[i] for i in held], name
    begins, count = begins_of("of_ids_npy/train.documents")
    assert count == len(train) and begins[:3] == [0, 700, 1400], begins
    for content, words in ((npy(ids + [end + 1]), ["token 30000 (from 0)", str(end + 1)]),
                           (npy([1.0], "<f4"), ["<f4"]), (npy([1, 2], "<u4", "(2, 1)"), ["(2, 1)"]),
                           (npy(ids)[:-8], ["truncated"]), (b"nothing", ["no NumPy file"])):
        write("wrong.npy", content)
        refused("--tokens", "wrong.npy", "--tokenizer", "bpe.json", words=["wrong.npy", *words])
    refused("--tokens", "ids.u16", "--tokenizer", "bpe.json", words=["ids.u16", "--token-type"])
    refused("--tokens", "ids.u16", "--tokenizer", "bpe.json", "--token-type", "int32",
            words=["--token-type", "must be uint16 or uint32, found 'int32'"])
    # Of ids below 65536, every second 16 bits of a 32-bit number are 0.
    for name, type_, warns in (("ids.u32", "uint16", True), ("ids.u16", "uint16", False),
                               ("ids.u32", "uint32", False)):
        done = subprocess.run([PROGRAM, "data", "prepare", "--output", "wide", "--force", "--tokens",
                               name, "--tokenizer", "bpe.json", "--token-type", type_],
                              capture_output=True, text=True, timeout=120, check=True)
        assert ("every second number is 0" in done.stderr) == warns, (name, type_, done.stderr)
        assert not warns or "--token-type uint32" in done.stderr, done.stderr
    assert "--tokenizer" in call(PROGRAM, "data", "prepare", "--output", "no", "--tokens", "ids.npy",
                                 status=2)


def check_training():
    """A job on the folder: the vocabulary follows it, and all commands take its tokenizer."""
    job = {"model": {"name": "gpt-tiny", "options": {"dropout": 0.0}},
           "data": {"directory": "bpe", "sequence": 16, "batch": 4},
           "checkpoint": {"directory": "run"}, "sample": {"prompt": "The don't", "tokens": 3},
           "steps": 2, "log_every": 1}
    write("job.json", json.dumps(job))
    said = call(PROGRAM, "train", "job.json")
    assert "sample: The don't" in said, said
    with open("run/step_2/config.json", encoding="utf-8") as file:
        config = json.load(file)
    assert config["vocab_size"] == Encoders.bpe.end + 1, config
    assert config["eos_token_id"] == Encoders.bpe.end, config
    assert "perplexity" in call(PROGRAM, "eval", "run", "--data", "bpe", "--batch", "2")
    call(PROGRAM, "export", "run", "exported", "--tokenizer", "bpe/tokenizer.json")
    assert sorted(os.listdir("exported")) == ["config.json", "model.safetensors", "tokenizer.json"]
    texts_made = {call(PROGRAM, "generate", "--checkpoint", weights, "--tokenizer", tokenizer,
                       "--prompt", "The don't", "--tokens", "5", "--temperature", "0")
                  for weights, tokenizer in (("run", "bpe/tokenizer.json"),
                                             ("exported", "exported/tokenizer.json"))}
    assert len(texts_made) == 1 and texts_made.pop().startswith("The don't")
    call(PROGRAM, "export", "exported", "again")
    assert "tokenizer.json" in os.listdir("again")


def check_foreign_files():
    """A folder with one file of another is refused wherever it is read, and the file is named."""
    for file in ("tokenizer.json", "train.tokens"):
        shutil.rmtree("patched", ignore_errors=True)
        shutil.copytree("bpe", "patched")
        if file == "tokenizer.json":
            with open("patched/" + file, "a", encoding="utf-8") as tokenizer:
                tokenizer.write("\n")
        else:
            shutil.copy("bpe/validation.tokens", "patched/" + file)
        of_job = ("train", "job.json", "--set", "data.directory=patched", "--set",
                  "checkpoint.directory=patched_run")
        for command in (of_job, (*of_job, "--check"),
                        ("eval", "run", "--data", "patched", "--split", "train", "--batch", "2")):
            said = call(PROGRAM, *command, status=2)
            assert "do not belong together" in said and file.split(".")[0] in said, (command, said)
        assert not os.path.exists("patched_run/newest")


def losses_of(log):
    with open(log, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return {record["step"]: record["loss"] for record in records
            if record["type"] == "step"}


def check_mixture():
    """One course whatever the layout, from a checkpoint as well; other data are refused."""
    def job(name, ranks, steps, **data):
        parts = [{"directory": "bpe", "weight": 1}, {"directory": "of_ids_npy", "weight": 3}]
        write(name + ".json", json.dumps({
            "parallel": {"pipeline_parallel_degree": 1, "ddp": ranks > 1, "timeout_seconds": 60},
            "model": {"name": "gpt-tiny", "options": {"dropout": 0.0}},
            "data": {"mixture": parts, "sequence": 16, "batch": 8, **data},
            "checkpoint": {"directory": "mixed_run"}, "validation": {"every": 2, "batches": 1},
            "optimizer": {"warmup_steps": 1}, "steps": steps, "log_every": 1}))
        return name + ".json"

    def train(ranks, file, *options, status=0):
        return call(PROGRAM, "launch", "-n", str(ranks), "--", PROGRAM, "train", file, *options,
                    status=status)

    whole = job("whole", 1, 4)
    assert "is a valid job" in call(PROGRAM, "train", whole, "--check")
    train(1, whole, "--log", "whole.jsonl", "--set", "checkpoint.directory=whole_run")
    train(1, whole, "--steps", "2", "--log", "cut.jsonl")
    train(2, job("two", 2, 4), "--resume", "--log", "cut.jsonl")
    first, second = losses_of("whole.jsonl"), losses_of("cut.jsonl")
    assert sorted(first) == sorted(second) == [1, 2, 3, 4], (first, second)
    for step, loss in first.items():
        assert abs(loss - second[step]) < 1e-4 * loss, (step, first, second)
    alone = job("alone", 1, 4, mixture=[{"directory": "bpe"}])
    train(1, alone, "--log", "alone.jsonl", "--set", "checkpoint.directory=alone_run")
    assert abs(losses_of("alone.jsonl")[4] - first[4]) > 1e-3 * first[4]

    heavier = [{"directory": "bpe", "weight": 2}, {"directory": "of_ids_npy", "weight": 3}]
    said = train(1, job("heavier", 1, 6, mixture=heavier), "--resume", status=2)
    assert "weight of bpe: the checkpoint has 1, the job 2" in said, said
    said = train(1, job("alone", 1, 6, mixture=[{"directory": "bpe"}]), "--resume", status=2)
    assert "the checkpoint has 2 folders, the job 1" in said, said
    for data, words in (({"directory": "bpe"}, ["data.directory", "data.mixture", "leave one"]),
                        ({"mixture": []}, ["data.directory", "data.mixture"]),
                        ({"mixture": [{"weight": 1}]}, ["mixture", "directory", "missing"]),
                        ({"mixture": [{"directory": "bpe", "weight": 0}]}, ["weight", "0"]),
                        ({"mixture": heavier + heavier[:1]}, ["bpe", "twice"]),
                        ({"mixture": heavier[:1] + [{"directory": "pieces"}]},
                         ["pieces", "bpe", "--tokenizer"])):
        said = call(PROGRAM, "train", job("wrong", 1, 2, **data), "--check", status=2)
        for word in words:
            assert word in said, (data, word, said)


class Encoders:
    bpe = None


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    DOCUMENTS = texts()
    assert len(DOCUMENTS) > 40, len(DOCUMENTS)
    Encoders.bpe = Bpe("\n".join(DOCUMENTS), 200)
    check_json_tokenizers(DOCUMENTS)
    check_inputs(DOCUMENTS)
    check_tokens()
    check_training()
    check_foreign_files()
    check_mixture()
    # Text without a tokenizer: one is trained, several files are documents each.
    FILES = sorted(glob.glob(REPOSITORY + "/docs/*.md"))
    SAID = prepare("--output", "trained", "--vocab-size", "400", "--text", *FILES)
    assert f" in {len(FILES)} documents," in SAID, SAID
    assert "tokenizer.model" in call(PROGRAM, "data", "show", "trained")
print("all as expected")
