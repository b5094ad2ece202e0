#!/usr/bin/env python3
"""usage: files_test.py PROGRAM FIXTURES

Folders that transformers wrote, through `tessera export`: the tensors come out with the same names,
types, shapes and bytes, in one file instead of several, and config.json as it was.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

PROGRAM, FIXTURES = sys.argv[1:]
PRECISIONS = {"float32": "f32", "float16": "fp16", "bfloat16": "bf16"}


def tensors_of(folder):
    found = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors") or file == "expected.safetensors":
            continue
        with open(os.path.join(folder, file), "rb") as stream:
            data = stream.read()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                first, last = (begin + offset for offset in entry["data_offsets"])
                found[name] = (entry["dtype"], entry["shape"], data[first:last])
    return found


def text_of(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return file.read()


names = sorted(os.listdir(FIXTURES))
assert len(names) > 10, names
with tempfile.TemporaryDirectory() as work:
    for name in names:
        fixture, made = os.path.join(FIXTURES, name), os.path.join(work, name)
        precision = PRECISIONS[json.loads(text_of(fixture))["dtype"]]
        done = subprocess.run([PROGRAM, "export", fixture, made, "--precision", precision],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(os.listdir(made)) == ["config.json", "model.safetensors"], os.listdir(made)
        assert text_of(made) == text_of(fixture), name
        committed, exported = tensors_of(fixture), tensors_of(made)
        assert committed.keys() == exported.keys(), (name, committed.keys() ^ exported.keys())
        differ = [tensor for tensor, entry in committed.items() if exported[tensor] != entry]
        assert not differ, (name, differ)
        print(f"{name}: {len(committed)} tensors as they were")
