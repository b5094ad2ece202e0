#!/usr/bin/env python3
"""Compares code in pages with the programs that it is taken from.

  excerpts.py ROOT | --self-test

A page names the program in a comment above a fenced block:
  <!-- code of examples/02_after.cpp -->        the block is a run of whole lines of the program
  <!-- difference of A.cpp and B.cpp -->        "-" and unchanged lines stand in A, "+" and unchanged lines in B,
                                                in this order; lines between them, indentation and comments may lack
Every block of C++ in docs/tutorials and in README.md must have such a comment. Prints what is wrong, one
line each; the exit status is 1 when anything is.
"""

import pathlib
import re
import sys
import tempfile

MARK = re.compile(r"<!-- (?:code of (\S+)|difference of (\S+) and (\S+)) -->")


def blocks_of(text):
    """(line number, language, mark or None, lines) of each fenced block."""
    lines = text.splitlines()
    mark, start, language = None, None, ""
    for number, line in enumerate(lines):
        fence = line.startswith("```")
        if start is None and fence:
            start, language = number + 1, line[3:].strip()
        elif start is not None and fence:
            yield start, language, mark, lines[start:number]
            start, mark = None, None
        elif start is None and MARK.fullmatch(line.strip()):
            mark = MARK.fullmatch(line.strip())
        elif start is None and line.strip():
            mark = None


def bare(line):
    """A line without indentation and trailing comment."""
    return re.sub(r"\s*//.*$", "", line).strip()


def in_order(wanted, program):
    """The first of the wanted lines that does not follow the one before it in the program, or None."""
    rest = iter([bare(line) for line in program])
    for line in wanted:
        if bare(line) and not any(bare(line) == other for other in rest):
            return line
    return None


def problem_of(root, mark, lines):
    programs = [name for name in mark.groups() if name]
    for name in programs:
        if not (root / name).is_file():
            return f"there is no {name}"
    texts = [(root / name).read_text().splitlines() for name in programs]
    if mark[1]:
        size = len(lines)
        found = any(texts[0][i:i + size] == lines for i in range(len(texts[0]) - size + 1))
        return None if found else f"these lines do not stand in {programs[0]}"
    for name, program, signs in ((programs[0], texts[0], "- "), (programs[1], texts[1], "+ ")):
        missing = in_order([line[1:] for line in lines if line[:1] in signs], program)
        if missing is not None:
            return f"'{missing.strip()}' does not stand in {name} behind the lines before it"
    return None


def problems(root):
    pages = [root / "README.md", *sorted((root / "docs/tutorials").glob("*.md"))]
    for page in pages:
        for number, language, mark, lines in blocks_of(page.read_text()):
            where = f"{page.relative_to(root)}:{number}"
            if mark:
                problem = problem_of(root, mark, lines)
                if problem:
                    yield f"{where}: {problem}"
            elif language in ("cpp", "diff"):
                yield f"{where}: say above the block which program it is from, as tests/style/excerpts.py tells"


def self_test():
    """The number of cases in which the check does not find what it should."""
    before, after = "int a;\nint b; // two\nint d;\n", "int a;\nint c;\nint d;\n"
    cases = [
        ("<!-- code of a.cpp -->\n```cpp\nint a;\nint b; // two\n```\n", 0),
        ("<!-- code of a.cpp -->\n\n```cpp\nint a;\nint d;\n```\n", 1),
        ("<!-- code of a.cpp -->\nwords\n```cpp\nint a;\n```\n", 1),
        ("<!-- code of gone.cpp -->\n```cpp\nint a;\n```\n", 1),
        ("<!-- difference of a.cpp and b.cpp -->\n```diff\n int a;\n-int b;\n+  int c; // three\n int d;\n```\n", 0),
        ("<!-- difference of a.cpp and b.cpp -->\n```diff\n-int c;\n```\n", 1),
        ("<!-- difference of a.cpp and b.cpp -->\n```diff\n int d;\n int a;\n```\n", 1),
        ("```cpp\nint a;\n```\n", 1),
        ("```sh\nls\n```\n", 0),
    ]
    wrong = 0
    for page, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/tutorials").mkdir(parents=True)
            (root / "a.cpp").write_text(before)
            (root / "b.cpp").write_text(after)
            (root / "README.md").write_text("")
            (root / "docs/tutorials/page.md").write_text(page)
            found = list(problems(root))
            if len(found) != expected:
                print(f"expected {expected} problems, found {found} in:\n{page}")
                wrong += 1
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        sys.exit(1 if self_test() else 0)
    found = list(problems(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
