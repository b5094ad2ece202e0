#!/usr/bin/env python3
"""Plants faults in the rooms that price, plan and simulate, and counts those that tests find.

usage: run.py --build BUILD [--rooms cost planner simulator] [--sample 60] [--seed 18] [--table FILE]

Every mutant is one change of one operator, function or number in one line of one source file. The
tests of the three rooms are built and run against it; a mutant that passes them all survives. One
that does not compile, or compiles to the same program, is left out of the share, and counted. The
files must be as committed, and are put back whatever happens.
"""
import argparse
import pathlib
import random
import re
import subprocess
import sys

TESTS = {"cost": "cost_test", "planner": "planner_test", "simulator": "simulator_test"}
# Which tests can see a room: prices are also what the planner and the simulator are tested by.
SEEN_BY = {
    "cost": ("cost", "simulator", "planner"),
    "simulator": ("simulator", "planner"),
    "planner": ("planner",),
}
# Binary operators have blanks around them in this project, and brackets of templates have none.
SWAPS = [
    (r"(?<= )<(?= )", "<="),
    (r"(?<= )<=(?= )", "<"),
    (r"(?<= )>(?= )", ">="),
    (r"(?<= )>=(?= )", ">"),
    (r"(?<= )==(?= )", "!="),
    (r"(?<= )!=(?= )", "=="),
    (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"),
    (r"(?<= )\*(?= )", "/"),
    (r"(?<= )/(?= )", "*"),
    (r"(?<= )\+=(?= )", "-="),
    (r"(?<= )&&(?= )", "||"),
    (r"(?<= )\|\|(?= )", "&&"),
    (r"\bstd::max\b", "std::min"),
    (r"\bstd::min\b", "std::max"),
    (r"(?<![\w.])0(?![\w.])", "1"),
    (r"(?<![\w.])1(?![\w.])", "2"),
    (r"(?<![\w.])2(?![\w.])", "3"),
]
SKIPPED = re.compile(r"^\s*(//|///|#|TESSERA_CHECK|throw |str\(|static_assert)")


def code_of(line):
    """Returns the line with comments and texts blanked, so that columns stay."""
    line = re.sub(r'"(\\.|[^"\\])*"', lambda m: '"' + "." * (len(m.group()) - 2) + '"', line)
    return re.sub(r"//.*", lambda m: " " * len(m.group()), line)


def mutants_of(path):
    for number, line in enumerate(path.read_text().split("\n")):
        if SKIPPED.match(line):
            continue
        code = code_of(line)
        for pattern, other in SWAPS:
            for found in re.finditer(pattern, code):
                yield number, line, line[: found.start()] + other + line[found.end():]


def run(command, seconds):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return 124


def verdict_of(build, room, program_before):
    """Returns "killed by ...", "survived" or "left out: ..." for the tree as it is."""
    targets = [TESTS[one] for one in SEEN_BY[room]]
    for one, target in zip(SEEN_BY[room], targets):
        if run(["ninja", "-C", str(build), target], 1800) != 0:
            return "left out: it does not compile"
        program = build / "tests" / "unit" / one / target
        if program.read_bytes() == program_before[one]:
            continue
        if run([str(program), "--gtest_brief=1", "--gtest_fail_fast=1"], 300) != 0:
            return f"killed by {target}"
    return "survived"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--rooms", nargs="+", default=list(TESTS), choices=list(TESTS))
    parser.add_argument("--sample", type=int, default=60, help="mutants to run; 0: all")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--table", type=pathlib.Path, help="where the result is written")
    parser.add_argument("--count", action="store_true", help="only say how many there are")
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    if subprocess.run(["git", "-C", root, "diff", "--quiet", "--", "tessera"]).returncode != 0:
        sys.exit("tessera/ has changes; commit them first")
    every = [
        (room, path, *mutant)
        for room in arguments.rooms
        for path in sorted((root / "tessera" / room).glob("*.cpp"))
        for mutant in mutants_of(path)
    ]
    chosen = list(every)
    random.Random(arguments.seed).shuffle(chosen)
    chosen = chosen[: arguments.sample] if arguments.sample else chosen
    print(f"{len(every)} mutants, {len(chosen)} of them are run")
    if arguments.count:
        return
    for room, target in TESTS.items():
        if run(["ninja", "-C", str(arguments.build), target], 3600) != 0:
            sys.exit(f"{target} does not compile as it is")
    before = {
        room: (arguments.build / "tests" / "unit" / room / target).read_bytes()
        for room, target in TESTS.items()
    }
    rows = []
    for room, path, number, line, changed in chosen:
        text = path.read_text()
        lines = text.split("\n")
        lines[number] = changed
        try:
            path.write_text("\n".join(lines))
            verdict = verdict_of(arguments.build, room, before)
        finally:
            path.write_text(text)
        place = f"{path.relative_to(root)}:{number + 1}"
        rows.append((place, changed.strip(), verdict))
        print(f"{verdict}: {place}: {line.strip()} -> {changed.strip()}", flush=True)
    counted = [row for row in rows if not row[2].startswith("left out")]
    killed = [row for row in counted if row[2].startswith("killed")]
    share = 100 * len(killed) / max(1, len(counted))
    summary = (f"{len(rows)} of {len(every)} mutants were run (seed {arguments.seed}); "
               f"{len(rows) - len(counted)} did not compile; "
               f"{len(killed)} of {len(counted)} were killed, {share:.0f} %.")
    print(summary)
    if arguments.table:
        survivors = "".join(
            f"- `{place}`: `{changed}`\n" for place, changed, verdict in rows
            if verdict == "survived")
        arguments.table.write_text(f"{summary}\n\nSurvived:\n\n{survivors or '- none'}\n")


if __name__ == "__main__":
    main()
