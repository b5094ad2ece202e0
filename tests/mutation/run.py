#!/usr/bin/env python3
"""Plants faults in the rooms that price, plan and simulate, and counts those that tests find.

usage: run.py --build BUILD [--rooms cost planner simulator] [--sample 60] [--seed 18]
              [--again FILE] [--state FOLDER [--seconds N]] [--table FILE] [--count]

Every mutant is one change of one operator, function or number in one line of one source file. The
tests of the rooms that use it are built and run against it, the quick ones first; a mutant that
passes them all survives. One that does not compile, or compiles to the same program, is left out
of the share, and so is one that cannot change what the program does: equivalent.txt names these,
each with the reason, and a test that kills one of them shows that the list is wrong. A test that
takes ten times its processor time, or more than 4 GiB, has found the mutant.
The files must be as committed, and are put back whatever happens, so run it in a clone of its own.
With --state a run goes on where an earlier one with the same arguments stopped, and with --seconds
it stops after so long with exit status 75, so that others can have the machine in between.

A build folder that makes mutants cheap, and ends a test that reads beyond a vector, as the address
sanitizer does under which these tests run as well:
  cmake -S . -B BUILD -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None \\
    -DCMAKE_CXX_FLAGS='-O1 -D_GLIBCXX_ASSERTIONS' -DTESSERA_UNITY=OFF -DTESSERA_WERROR=OFF \\
    -DTESSERA_BUILD_BENCHMARKS=OFF -DTESSERA_BUILD_EXAMPLES=OFF -DTESSERA_BUILD_TOOLS=OFF
"""
import argparse
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
MOST_KIB = 4 << 20
LEFT_OUT = ("does not compile", "same program", "equivalent")

Mutant = collections.namedtuple("Mutant", "room path number line changed")


def program_of(build, room):
    return build / "tests" / "unit" / room / f"{room}_test"


def code_of(line):
    """Returns the line with comments and texts blanked, so that columns stay."""
    line = re.sub(r'"(\\.|[^"\\])*"', lambda m: '"' + "." * (len(m.group()) - 2) + '"', line)
    return re.sub(r"//.*", lambda m: " " * len(m.group()), line)


def mutants_of(room):
    for path in sorted((ROOT / "tessera" / room).glob("*.cpp")):
        for number, line in enumerate(path.read_text().split("\n")):
            if SKIPPED.match(line):
                continue
            code = code_of(line)
            for pattern, other in SWAPS:
                for found in re.finditer(pattern, code):
                    changed = line[: found.start()] + other + line[found.end():]
                    yield Mutant(room, path, number, line, changed)


def key_of(mutant):
    return (f"{mutant.room}/{mutant.path.name}", mutant.line.strip(), mutant.changed.strip())


def read_equivalent():
    """Returns {(file, line, changed line): reason}. A record is four lines: file, `- line`,
    `+ changed line`, reason."""
    text = pathlib.Path(__file__).with_name("equivalent.txt").read_text()
    records = [one.strip().split("\n") for one in re.split(r"\n\s*\n", text)]
    result = {}
    for file, line, changed, *reason in records[1:]:
        assert line.startswith("- ") and changed.startswith("+ ") and reason, file
        result[file, line[2:].strip(), changed[2:].strip()] = " ".join(reason)
    return result


def survivors_of(path):
    """Returns the keys of what survived by a table of this program."""
    found = re.findall(r"^survived: (\S+):\d+\n- (.*)\n\+ (.*)$", path.read_text(), re.MULTILINE)
    return set(found)


def run(script):
    return subprocess.run(["bash", "-c", script], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode


class Judge:
    """Builds the tests and runs them, first as the tree is, to learn what passes how quickly."""

    def __init__(self, build, folder):
        self.build = build
        self.folder = folder
        self.slow = {}  # room: names of test cases that run in a second round
        self.seconds = {}
        for room in SEEN_BY:
            self.learn(room)

    def learn(self, room):
        program = program_of(self.build, room)
        report = self.folder / f"{room}.json"
        if not report.exists():
            command = (f"ninja -C {self.build} {room}_test && "
                       f"{program} --gtest_brief=1 --gtest_output=json:{report}.new")
            if run(command) != 0:
                sys.exit(f"{room}_test does not compile or pass as it is")
            (self.folder / room).write_bytes(program.read_bytes())
            pathlib.Path(f"{report}.new").rename(report)
        cases = [
            (f"{suite['name']}.{case['name']}", float(case["time"].rstrip("s")))
            for suite in json.loads(report.read_text())["testsuites"]
            for case in suite["testsuite"]
        ]
        self.slow[room] = [name for name, seconds in cases if seconds > 0.2]
        self.seconds[room] = sum(seconds for _, seconds in cases)

    def verdict(self, room):
        """Returns what becomes of the tree as it is now."""
        rounds = [(one, f"-{':'.join(self.slow[one])}") for one in SEEN_BY[room]]
        rounds += [(one, ":".join(self.slow[one])) for one in SEEN_BY[room] if self.slow[one]]
        script = ["same=1"]
        for i, (one, cases) in enumerate(rounds):
            program = program_of(self.build, one)
            script.append(
                f"ninja -C {self.build} {one}_test || exit 100\n"
                f"if ! cmp -s {program} {self.folder / one}; then\n"
                f"  same=0; (ulimit -v {MOST_KIB} -t {int(10 * self.seconds[one]) + 10}\n"
                f"  exec {program} --gtest_brief=1 --gtest_fail_fast=1 '--gtest_filter={cases}')"
                f" || exit {10 + i}\nfi")
        script.append("exit $((same * 101))")
        code = run("\n".join(script))
        if code in (0, 100, 101):
            return {0: "survived", 100: "does not compile", 101: "same program"}[code]
        return f"killed by {rounds[code - 10][0]}_test"


def judged(judge, mutant):
    text = mutant.path.read_text()
    lines = text.split("\n")
    lines[mutant.number] = mutant.changed
    try:
        mutant.path.write_text("\n".join(lines))
        return judge.verdict(mutant.room)
    finally:
        mutant.path.write_text(text)


def table_of(rows, totals):
    """Returns the result by room as a table, and what survived below it."""
    text = ("| room | mutants there are | planted | does not compile | same program | "
            "equivalent | killed | survived | share |\n|---|---|---|---|---|---|---|---|---|\n")
    for room in totals:
        verdicts = collections.Counter(
            verdict.split(" by ")[0] for mutant, verdict in rows if mutant.room == room)
        judged_ones = verdicts["killed"] + verdicts["survived"]
        figures = [verdicts[one] for one in (*LEFT_OUT, "killed", "survived")]
        share = 100 * verdicts["killed"] / max(1, judged_ones)
        text += (f"| {room} | {totals[room]} | {sum(verdicts.values())} | "
                 + " | ".join(map(str, figures)) + f" | {share:.1f} % |\n")
    for mutant, verdict in rows:
        if verdict == "survived":
            file, line, changed = key_of(mutant)
            text += f"\nsurvived: {file}:{mutant.number + 1}\n- {line}\n+ {changed}\n"
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--rooms", nargs="+", default=list(SEEN_BY), choices=list(SEEN_BY))
    parser.add_argument("--sample", type=int, default=60, help="mutants of a room; 0: all")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--again", type=pathlib.Path,
                        help="a table of an earlier run: only what survived is run again")
    parser.add_argument("--state", type=pathlib.Path, help="what is known already is kept here")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--table", type=pathlib.Path, help="where the result is written")
    parser.add_argument("--count", action="store_true", help="only say how many there are")
    arguments = parser.parse_args()
    begin = time.monotonic()
    if subprocess.run(["git", "-C", ROOT, "diff", "--quiet", "--", "tessera"]).returncode != 0:
        sys.exit("tessera/ has changes; commit them first")
    every = {room: list(mutants_of(room)) for room in arguments.rooms}
    totals = {room: len(mutants) for room, mutants in every.items()}
    if arguments.count:
        print(totals)
        return
    equivalent = read_equivalent()
    folder = arguments.state or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    judge = Judge(arguments.build.resolve(), folder)
    log = folder / "verdicts"
    known = log.read_text().split("\n") if log.exists() else []
    again = survivors_of(arguments.again) if arguments.again else None
    rows = []
    for room, mutants in every.items():
        random.Random(f"{arguments.seed} {room}").shuffle(mutants)
        if again is not None:
            mutants = [mutant for mutant in mutants if key_of(mutant) in again]
        for mutant in mutants[: arguments.sample or None]:
            if len(rows) < len(known) - 1:
                verdict = known[len(rows)]
            elif time.monotonic() - begin > arguments.seconds:
                sys.exit(75)
            else:
                verdict = judged(judge, mutant)
                with log.open("a") as lines:
                    lines.write(verdict + "\n")
                file, line, changed = key_of(mutant)
                print(f"{verdict}: {file}:{mutant.number + 1}\n- {line}\n+ {changed}", flush=True)
            if key_of(mutant) in equivalent:
                if verdict.startswith("killed"):
                    sys.exit(f"equivalent.txt is wrong: {verdict}: {key_of(mutant)}")
                verdict = "equivalent"
            rows.append((mutant, verdict))
    table = table_of(rows, totals)
    print(table)
    if arguments.table:
        arguments.table.write_text(table)


if __name__ == "__main__":
    main()
