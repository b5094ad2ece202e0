#!/usr/bin/env python3
"""usage: compare_test.py PROGRAM

`tessera report` with several runs: figures and differences of logs written by hand, and what is
refused.
"""
import html.parser
import os
import re
import sys
import tempfile

from run_logs import call, lines_of, loss_at, write

PROGRAM = sys.argv[1]


class Page(html.parser.HTMLParser):
    """Tables as lists of rows of cells; elements that were closed in another order than opened."""

    EMPTY = {"meta", "input", "img", "line", "rect", "circle", "path"}

    def __init__(self, text):
        super().__init__()
        self.tables, self.open, self.cell = [], [], None
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_startendtag(self, tag, attrs):
        assert tag in self.EMPTY, tag

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data


def row(page, begin):
    found = [cells[1:] for table in page.tables for cells in table if cells[0].startswith(begin)]
    assert len(found) == 1, (begin, found)
    return found[0]


def mean_loss(last, scale=1.0):
    return sum(loss_at(step, scale) for step in range(last - 9, last + 1)) / 10


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    os.mkdir("first")
    write("first/log.jsonl", lines_of("aa"))
    os.mkdir("second")
    slow = {"steps": 40, "optimizer": {"learning_rate": 0.002}, "bf16": True}
    write("second/run.jsonl", lines_of("bb", steps=30, scale=1.5, config=slow, world_size=4,
                                       tokens_per_step=1024)[:-1])
    write("third.jsonl", lines_of("cc", scale=2.0))

    # Folders and logs, in the order given; what is printed says the same as the page.
    printed = call(PROGRAM, "report", "first", "second/", "third.jsonl", "--output", "all.html")
    with open("all.html", encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    assert row(page, "end") == ["finished", "no end recorded", "finished"]
    assert row(page, "last step") == ["40 of 40", "30 of 40", "40 of 40"]
    expected = [mean_loss(40), mean_loss(30, 1.5), mean_loss(40, 2.0)]
    for found, value in zip(row(page, "training loss, mean"), expected, strict=True):
        assert abs(float(found) - value) < 1e-3 * value, (found, value)
    expected = [mean_loss(30, scale) for scale in (1, 1.5, 2)]
    for found, value in zip(row(page, "training loss at step 30"), expected, strict=True):
        assert abs(float(found) - value) < 1e-3 * value, (found, value)
    assert row(page, "tokens trained on") == ["20.5 k", "30.7 k", "20.5 k"]
    assert row(page, "wall time") == ["20.0 s", "15.0 s", "20.0 s"]
    assert row(page, "most memory of a rank") == ["3.00 MiB"] * 3
    assert row(page, "restarts") == ["0", "0", "0"]
    assert row(page, "ranks") == ["2", "4", "2"]
    assert row(page, "optimizer.learning_rate") == ["0.001", "0.002", "0.001"]
    assert row(page, "bf16") == ["-", "true", "-"]
    assert not any(cells[0] == "steps" for table in page.tables for cells in table)
    for words in ("over steps", "over tokens", "over time"):
        assert text.count("nats per token, " + words) >= 2, words
    assert "<script" not in text and "://" not in text
    assert re.search(r"wall time +20\.0 s +15\.0 s +20\.0 s\n", printed), printed
    assert re.search(r"optimizer\.learning_rate +0\.001 +0\.002 +0\.001\n", printed), printed
    assert printed.endswith("report: all.html\n"), printed
    assert call(PROGRAM, "report", "first", "third.jsonl", "-q", "-o", "all.html") == (
        "report: all.html\n")

    # One run may be given as its folder, too.
    assert "finished at step 40" in call(PROGRAM, "report", "first", "--output", "one.html")

    # Damage is counted as in the report of one run; what is no log ends the comparison.
    lines = open("third.jsonl", "rb").read().splitlines(keepends=True)
    lines[5] = b"\xff" + lines[5]
    open("damaged.jsonl", "wb").write(b"".join(lines)[:-3])
    text = call(PROGRAM, "report", "first", "damaged.jsonl", "--output", "all.html")
    assert "B: The last line of the log was cut off" in text, text
    assert "B: Lines of the log that could not be read and are left out: 1" in text, text
    with open("no.jsonl", "w", encoding="utf-8") as file:
        file.write('{"type":"step"}\n')
    os.remove("all.html")
    for bad in ("no.jsonl", "missing.jsonl"):
        text = call(PROGRAM, "report", "first", bad, "--output", "all.html", status=1)
        assert bad in text, text
    assert not os.path.exists("all.html")

    # Refusals.
    def refused(*arguments, words):
        text = call(PROGRAM, "report", *arguments, status=2)
        assert words in text, (words, text)

    refused("first", "first/log.jsonl", words="are one log; name each run once")
    refused("first", "third.jsonl", "--output", "first/log.jsonl", words="would be lost")
    for option in ("--timeline", "--export-csv", "--export-tensorboard"):
        refused("first", "third.jsonl", option, "x", words=option + " is of one run, and 2 are given")
    refused("first", "third.jsonl", "--peak-gflops", "5", words="--peak-gflops is of one run")
    refused(*["first"] * 9, words="at most 8 runs are compared; 9 are given")
    os.mkdir("empty")
    refused("empty", words="'empty' holds no run log")
    write("second/other.jsonl", lines_of("dd"))
    refused("second", words="holds several logs; name one of them: second/other.jsonl, second/run.jsonl")
    write("copy.jsonl", lines_of("aa"))
    text = call(PROGRAM, "report", "first", "copy.jsonl", "--output", "all.html", status=1)
    assert "'first' and 'copy.jsonl' hold the same run, aa" in text, text
    assert not os.path.exists("report.html")

print("all as expected")
