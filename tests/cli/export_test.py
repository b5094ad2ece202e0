#!/usr/bin/env python3
"""usage: export_test.py PROGRAM

What `tessera report` exports, read back by other programs' rules: comma-separated values by
Python's csv, event files by TFRecord and protobuf as their documents describe them, without
TensorBoard.
"""
import csv
import math
import os
import struct
import sys
import tempfile

from run_logs import STARTED_SECONDS, call, lines_of, loss_at, run_line, step_line, write

PROGRAM = sys.argv[1]


def crc32c(data):
    """Bit by bit, as the polynomial says it; the program has a table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def unmasked(value):
    value = (value - 0xA282EAD8) & 0xFFFFFFFF
    return ((value >> 17) | (value << 15)) & 0xFFFFFFFF


def tfrecords(data):
    at = 0
    while at < len(data):
        length = data[at:at + 8]
        (size,) = struct.unpack("<Q", length)
        assert unmasked(struct.unpack("<I", data[at + 8:at + 12])[0]) == crc32c(length), at
        record = data[at + 12:at + 12 + size]
        assert len(record) == size, at
        end = at + 12 + size
        assert unmasked(struct.unpack("<I", data[end:end + 4])[0]) == crc32c(record), at
        yield record
        at = end + 4


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(message):
    """(number, value) of each field of a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(message, at)
        elif kind == 1:
            value, at = struct.unpack("<d", message[at:at + 8])[0], at + 8
        elif kind == 2:
            size, at = varint(message, at)
            value, at = message[at:at + size], at + size
            assert len(value) == size
        else:
            assert kind == 5, kind
            value, at = struct.unpack("<f", message[at:at + 4])[0], at + 4
        yield tag >> 3, value


def events(path):
    """(wall time, step, {tag: value}) of each event behind the version."""
    with open(path, "rb") as file:
        records = list(tfrecords(file.read()))
    first = dict(fields(records[0]))
    assert first[3] == b"brain.Event:2" and first[1] == STARTED_SECONDS, first
    for record in records[1:]:
        event = dict(fields(record))
        assert set(event) == {1, 2, 5}, event
        values = {}
        for number, value in fields(event[5]):
            assert number == 1
            scalar = dict(fields(value))
            assert set(scalar) == {1, 2}, scalar
            values[scalar[1].decode()] = scalar[2]
        yield event[1], event[2], values


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720
    lines = lines_of("cafe", steps=20)[:-1]
    # Resumed at step 16, in fp16, with a step that was left out.
    lines.append(run_line("feed", first_step=16, started="2026-01-02T04:04:05Z"))
    for step in range(16, 151):
        lines.append(step_line(step, loss_at(step), elapsed_seconds=0.25 * (step - 15),
                               loss_scale=512, offload_bytes=[7, 5]))
    lines[-3]["loss"] = None
    lines[-3]["skipped"] = 'rank 1: "overflow", twice'
    write("run.jsonl", lines)

    printed = call(PROGRAM, "report", "run.jsonl", "-q", "--export-csv", "run.csv",
                   "--export-tensorboard", "events")
    name = "events/events.out.tfevents." + str(STARTED_SECONDS) + ".cafe"
    assert printed == "events: " + name + "\nreport: report.html\n", printed

    with open("run.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    steps = [row for row in rows if row["record"] == "step"]
    validations = [row for row in rows if row["record"] == "validation"]
    assert [int(row["step"]) for row in steps] == list(range(1, 151))
    assert [int(row["step"]) for row in validations] == [10]  # that of step 20 was dropped
    assert rows.index(validations[0]) == 10
    assert float(validations[0]["loss"]) == loss_at(10) + 0.25
    assert not any(validations[0][key] for key in rows[0] if key not in ("record", "step", "loss"))
    for row in steps:
        step = int(row["step"])
        resumed = step >= 16
        loss = float(row["loss"])
        assert math.isnan(loss) if step == 148 else loss == loss_at(step), (step, loss)
        assert float(row["learning_rate"]) == 0.001 / step
        assert float(row["grad_norm"]) == 1 / step
        assert float(row["tokens_per_second"]) == 1000.5 and float(row["step_seconds"]) == 0.5
        assert int(row["tokens"]) == 512 * step
        # The first start ran for 10 s before it was lost.
        assert float(row["seconds"]) == (10 + 0.25 * (step - 15) if resumed else 0.5 * step), row
        assert int(row["start"]) == (2 if resumed else 1)
        assert int(row["memory_bytes"]) == 3 << 20
        assert row["offload_bytes"] == ("7" if resumed else "")
        assert row["loss_scale"] == ("512" if resumed else "") and row["bubble_share"] == ""
        assert row["skipped"] == ('rank 1: "overflow", twice' if step == 148 else "")

    seen = {}
    for wall_time, step, values in events(name):
        for tag, value in values.items():
            seen.setdefault(tag, []).append((step, value))
        resumed = step >= 16
        elapsed = 3600 + 0.25 * (step - 15) if resumed else 0.5 * step
        assert wall_time == STARTED_SECONDS + elapsed, (step, wall_time)
    assert set(seen) == {
        "loss/training", "loss/validation", "optimizer/learning_rate", "optimizer/gradient_norm",
        "optimizer/loss_scale", "speed/tokens_per_second", "speed/step_seconds",
        "memory/largest_rank_bytes", "memory/largest_offload_bytes"}, set(seen)
    assert [step for step, _ in seen["loss/training"]] == list(range(1, 151))
    for step, value in seen["loss/training"]:
        assert math.isnan(value) if step == 148 else value == f32(loss_at(step)), step
    assert seen["loss/validation"] == [(10, f32(loss_at(10) + 0.25))]
    assert seen["optimizer/learning_rate"] == [(n, f32(0.001 / n)) for n in range(1, 151)]
    assert seen["optimizer/gradient_norm"] == [(n, f32(1 / n)) for n in range(1, 151)]
    assert seen["speed/tokens_per_second"] == [(n, f32(1000.5)) for n in range(1, 151)]
    assert seen["optimizer/loss_scale"] == [(n, 512.0) for n in range(16, 151)]
    assert seen["memory/largest_rank_bytes"] == [(n, float(3 << 20)) for n in range(1, 151)]

    # A second export takes the place of the first; another run's does not stand beside it.
    before = open(name, "rb").read()
    call(PROGRAM, "report", "run.jsonl", "-q", "--export-tensorboard", "events")
    assert os.listdir("events") == [os.path.basename(name)] and open(name, "rb").read() == before
    write("other.jsonl", lines_of("beef"))
    text = call(PROGRAM, "report", "other.jsonl", "-q", "--export-tensorboard", "events", status=2)
    assert "holds events of another run" in text and "cafe" in text, text
    assert os.listdir("events") == [os.path.basename(name)]

    # What cannot be written, or would be lost, is said.
    for output in ("run.jsonl", "report.html"):
        text = call(PROGRAM, "report", "run.jsonl", "--export-csv", output, status=2)
        assert "would be lost" in text or "name two files" in text, text
    assert '"no/run.csv" cannot be written: No such file' in call(
        PROGRAM, "report", "run.jsonl", "--export-csv", "no/run.csv", status=1)
    assert "cannot make folder 'run.csv'" in call(
        PROGRAM, "report", "run.jsonl", "--export-tensorboard", "run.csv", status=1)

print("all as expected")
