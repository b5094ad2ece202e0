#!/usr/bin/env python3
"""Checks the form of docs/conformance.md and docs/conformance_optimus_amp.md.

  conformance.py ROOT | --self-test

An item is one requirement, with two spaces before its further lines:
  - **12** (source) What is asked. *verdict*: what there is to say. Code: `file`, `file`. Test: `file`, `ctest.name`.
"Code:" and "Test:" may lack, but not where a verdict needs them. Every number from 1 to the page's last stands once, in
order; the verdict is one of the list; files exist, names of tests are declared in a CMakeLists.txt; "deviates" is followed by a
link to a page of decisions, the other verdicts are not; the counts at the top are those of the items. Prints what is wrong, one
line each; the exit status is 1 when anything is.
"""

import collections
import pathlib
import re
import sys
import tempfile

PAGES = {"docs/conformance.md": 411, "docs/conformance_optimus_amp.md": 144}
VERDICTS = ("works", "untested", "partly", "missing", "deviates", "deviates, no page")
ITEM = re.compile(
    r"- \*\*(?P<number>\d+)\*\* \((?P<source>[^)]+)\) (?P<text>.+?)\. \*(?P<verdict>[^*]+)\*"
    r"(?P<decision> \(\[[^\]]*\]\([^)]*\)\))?(?::(?P<note> .+?))?\."
    r"(?: Code: (?P<code>[^ ,]+(?:, [^ ,]+)*)\.)?(?: Test: (?P<test>[^ ,]+(?:, [^ ,]+)*)\.)?")
DECISION = re.compile(r"adr/\d{4}-[a-z0-9-]+\.md")
COUNT = re.compile(r"- (?:\*([a-z, ]+)\*|(all)): (\d+)")
COMMAND = re.compile(r"\b(foreach|add_test|tessera_add_\w*test)\(\s*([^)]*)")


def items_of(text):
    """Line number and joined text of every list item of the sections."""
    items = []
    inside = False
    top = text.split("\n## ")[0].count("\n") + 1
    for number, line in enumerate(text.splitlines(), 1):
        if number > top and line.startswith("- "):
            items.append([number, line])
            inside = True
        elif inside and line.startswith("  "):
            items[-1][1] += " " + line.strip()
        else:
            inside = False
    return items


def tests_in(text):
    """Patterns of the names of tests that a CMakeLists.txt declares."""
    loops = {}  # a variable's items in the nearest loop before
    for command, arguments in COMMAND.findall(re.sub(r"#.*", "", text)):
        words = arguments.split()
        if command == "foreach":
            loops[words[0]] = words[3:] if words[1:3] == ["IN", "ITEMS"] else []
            continue
        name = words[1] if words[0] == "NAME" else words[0]
        ranks = []
        if command == "tessera_add_mpi_test" and "RANKS" in words:
            for word in words[words.index("RANKS") + 1:]:
                if not word.isdigit():
                    break
                ranks.append("." + word)
        if not re.search(r"\w", re.sub(r"\$(\{\w*\}|<[^>]*>)", "", name)):
            continue  # a function's own, whose calls are seen
        pattern = re.sub(
            r"\\\$\\\{(\w+)\\\}", lambda m: "(" + ("|".join(map(re.escape, loops.get(m[1], []))) or r"\w+") + ")",
            re.escape(name))
        for rank in ranks or [""]:
            yield pattern + re.escape(rank)


def declared_tests(root):
    patterns = set()
    for folder in ("tests", "examples", "bench"):
        for file in sorted((root / folder).rglob("CMakeLists.txt")):
            patterns.update(tests_in(file.read_text()))
    return re.compile("|".join(sorted(patterns)) or "(?!)")


def named(field):
    return re.findall(r"`([^`]+)`", field or "")


def problems_of_item(root, item, tests):
    verdict, decision = item["verdict"], item["decision"]
    if verdict not in VERDICTS:
        yield f"'{verdict}' is no verdict"
    code, test = named(item["code"]), named(item["test"])
    for name in code + [name for name in test if "/" in name]:
        if not (root / name).is_file():
            yield f"there is no file {name}"
    for name in test:
        if "/" not in name and not tests.fullmatch(name):
            yield f"no test is declared as {name}"
    if verdict == "works" and not (code and test):
        yield "what works needs code and a test"
    if verdict in ("partly", "untested") and not code:
        yield f"'{verdict}' needs code"
    if verdict in ("partly", "untested", "deviates, no page") and not item["note"]:
        yield f"say what is to be said of '{verdict}'"
    page = DECISION.search(decision or "")
    if verdict == "deviates" and not page:
        yield "what deviates needs the link to a page of decisions"
    if verdict != "deviates" and decision:
        yield f"'{verdict}' has a page of decisions"
    if page and not (root / "docs" / page[0]).is_file():
        yield f"there is no page docs/{page[0]}"


def problems(root, page, requirements):
    if not (root / page).is_file():
        yield f"there is no page {page}"
        return
    text = (root / page).read_text()
    tests = declared_tests(root)
    counts = collections.Counter()
    expected = 1
    for line, joined in items_of(text):
        item = ITEM.fullmatch(joined)
        if not item:
            yield f"{page}:{line}: not of the form of an item: {joined[:60]}"
            expected += 1
            continue
        number = int(item["number"])
        if number != expected:
            yield f"{page}:{line}: {number} where {expected} should stand"
        expected = number + 1
        counts[item["verdict"]] += 1
        for problem in problems_of_item(root, item, tests):
            yield f"{page}:{line}: {number}: {problem}"
    if expected != requirements + 1:
        yield f"{page}: ends at {expected - 1} instead of {requirements}"
    stated = {}
    for verdict, every, count in COUNT.findall(text.split("\n## ")[0]):
        stated[verdict or every] = int(count)
    for verdict in (*VERDICTS, "all"):
        real = sum(counts.values()) if verdict == "all" else counts[verdict]
        if stated.get(verdict) != real:
            yield f"{page}: {verdict}: {stated.get(verdict)} at the top, {real} items"


GOOD = """- **1** (000 1) One thing. *works*. Code: `a.cpp`.
  Test: `tests/t.cpp`, `plain`, `ranked.4`, `loop.b`.
- **2** (api 2) Another `x.y` (of two). *deviates* ([decision 1](adr/0001-page.md)): so. Code: `a.cpp`.
- **3** (ours) A third. *missing*: refused.
"""
CMAKE = """tessera_add_test(plain TORCH SOURCES t.cpp)
tessera_add_mpi_test(ranked RANKS 2 4
  SOURCES t.cpp)
foreach(name IN ITEMS a b)
  add_test(NAME loop.${name} COMMAND x)
endforeach()
add_test(NAME ${name}.${ranks} COMMAND x)
"""


def self_test():
    """The number of cases in which the check does not find what it should."""
    counts = {"works": 1, "untested": 0, "partly": 0, "missing": 1, "deviates": 1, "deviates, no page": 0, "all": 3}
    cases = [
        (GOOD, GOOD, {}, 0),
        ("**2**", "**1**", {}, 2),  # 1 for 2, then 3 for 2
        ("- **2**", "- 2", {"deviates": 0, "all": 2}, 1),
        ("- **3** (ours) A third. *missing*: refused.\n", "", {"missing": 0, "all": 2}, 1),
        ("*missing*: refused", "*planned*: soon", {"missing": 0}, 1),
        ("`a.cpp`.\n", "`gone.cpp`.\n", {}, 2),
        ("tests/t.cpp", "tests/gone.cpp", {}, 1),
        ("`plain`", "`plane`", {}, 1),
        ("ranked.4", "ranked.3", {}, 1),
        ("ranked.4", "ranked", {}, 1),
        ("loop.b", "loop.c", {}, 1),
        (" Code: `a.cpp`.\n  Test: `tests/t.cpp`, `plain`, `ranked.4`, `loop.b`.", " Code: `a.cpp`.", {}, 1),
        (" Code: `a.cpp`.\n  Test", "\n  Test", {}, 1),
        (" ([decision 1](adr/0001-page.md))", "", {}, 1),
        ("0001-page", "0002-gone", {}, 1),
        ("*missing*: refused", "*missing* ([decision 1](adr/0001-page.md)): refused", {}, 1),
        ("*missing*: refused", "*partly*: half", {"missing": 0, "partly": 1}, 1),
        ("*missing*: refused", "*untested*: odd", {"missing": 0, "untested": 1}, 1),
        ("*missing*: refused", "*deviates, no page*", {"missing": 0, "deviates, no page": 1}, 1),
        ("(ours) A third", "A third", {"missing": 0, "all": 2}, 1),
        (GOOD, GOOD, {"works": 2}, 1),
        (GOOD, GOOD, {"all": 4}, 1),
    ]
    wrong = 0
    for old, new, changed, expected in cases:
        page = GOOD.replace(old, new)
        top = "".join(
            f"- {name}: {count}\n" if name == "all" else f"- *{name}*: {count}\n"
            for name, count in {**counts, **changed}.items())
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/adr").mkdir(parents=True)
            (root / "tests").mkdir()
            for name in ("a.cpp", "tests/t.cpp", "docs/adr/0001-page.md"):
                (root / name).write_text("")
            (root / "tests/CMakeLists.txt").write_text(CMAKE)
            (root / "docs/some.md").write_text(f"# Top\n\n{top}\n## A. Part\n\n{page}")
            found = list(problems(root, "docs/some.md", requirements=3))
            if len(found) != expected:
                print(f"expected {expected} problems, found {found} with {new!r} and {changed}")
                wrong += 1
    if len(list(problems(pathlib.Path("nowhere"), "docs/gone.md", 3))) != 1:
        print("a page that is gone was not missed")
        wrong += 1
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        sys.exit(1 if self_test() else 0)
    root = pathlib.Path(sys.argv[1])
    found = [problem for page, requirements in PAGES.items() for problem in problems(root, page, requirements)]
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
