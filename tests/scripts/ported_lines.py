#!/usr/bin/env python3
"""usage: ported_lines.py FOLDER

Fails unless every line by which FOLDER/ported.cpp differs from FOLDER/plain.cpp, beside its
indentation, ends in `// tessera`, and prints how many lines were changed, added and removed. A
marked line that the plain script has in the same place is a mistake as well.
"""

import difflib
import pathlib
import sys

MARK = "// tessera"


def lines_of(path):
    return [line.strip() for line in path.read_text().splitlines()]


def main(folder):
    plain = lines_of(folder / "plain.cpp")
    ported = lines_of(folder / "ported.cpp")
    marked = [line.endswith(MARK) for line in ported]
    without_mark = [line.removesuffix(MARK).rstrip() for line in ported]
    failures = []
    for line, is_marked in zip(without_mark, marked):
        if is_marked and line in plain and len(line) > 4:
            failures.append(f"marked, but the plain script has it too: {line}")
    # What is not marked must stand in the plain script, in the same order.
    kept = [line for line, is_marked in zip(ported, marked) if not is_marked]
    removed = 0
    for line in difflib.ndiff(plain, kept):
        if line.startswith("+ "):
            failures.append(f"not marked, but not in the plain script: {line[2:]}")
        elif line.startswith("- "):
            removed += 1
    for failure in failures:
        print(f"{folder.name}/ported.cpp: {failure}")
    print(
        f"{folder.name}: {len(plain)} lines, of which {removed} are not in the ported script, "
        f"{sum(marked)} new"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
