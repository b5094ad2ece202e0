#!/usr/bin/env python3
"""Checks docs/papers.md: that it has a line for every section that it promises, and that what lines name is there.

  papers.py ROOT | --self-test

A line is "- **Sections of the paper**: what it is. Code: `name`, ... Test: `name`, ...". A name of code is a file or a folder
(from the root, of tessera/, of a folder that the section's second line names after "Code under", or beside the name before it),
or a word of the sources; a name of a test is a file, a folder, or a word of tests/ or of a CMakeLists.txt. Names with spaces
are commands, and are not looked at. Prints what is wrong, one line each; the exit status is 1 when anything is.
"""

import pathlib
import re
import sys
import tempfile

# What the page must have a line of, by the beginning of its headings.
SECTIONS = {
    "Karakus et al. 2021": "3.1 3.2.2 3.2.3 4.1 4.2 4.3 4.4 4.5 5.1 5.2 5.3 6 7.1-7.3 B C.1 C.2 C.3 C.4 D E.1 E.2 E.3 F.1 F.2 "
                           "G.1 G.2 G.3 H.1 H.2 H.3 I.1 I.2 I.3 I.4 I.5 I.6",
    "Xu et al. 2021": "2.4 3.2.1 3.2.2 3.2.3 4 5",
    "Li et al. 2022": "3.1 3.3 3.4 3.5 3.6 4.1 4.2 4.3 4.5",
}
SOURCES = (".h", ".cpp", ".py", ".sh", ".txt", ".cu")


def items_of(text):
    """(Line number, joined text) of every list item."""
    items = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("- "):
            items.append([number, line])
        elif items and line.startswith("  "):
            items[-1][1] += " " + line.strip()
    return items


class Names:
    def __init__(self, root):
        self.root = root
        self.files = {}
        self.words = {"code": set(), "tests": set()}
        for folder in ("tessera", "models", "cli", "bench", "tests", "examples"):
            for path in sorted((root / folder).rglob("*")):
                if path.suffix in SOURCES and path.is_file():
                    self.files.setdefault(path.name, path)
                    words = set(re.findall(r"\w+", path.read_text(errors="replace")))
                    self.words["tests" if folder in ("tests", "examples") else "code"] |= words
                    if folder in ("tests", "examples"):
                        self.words["tests"].add(path.stem)

    def has_path(self, name, folders):
        return any((self.root / folder / name).exists() for folder in ("", "tessera", *folders))

    def has(self, kind, name, folders):
        name = name.rstrip("*.") if kind == "tests" else name
        if self.has_path(name, folders) or pathlib.PurePath(name).name in self.files and "/" not in name:
            return True
        if "/" in name or name.endswith(SOURCES):
            return False
        # Names of programs' tests are made of a part for all of them and one of their own.
        return all(word in self.words[kind] or kind == "tests" and any(
            word.startswith(part + "_") or word.endswith("_" + part) for part in self.words[kind] if len(part) > 3)
            for word in re.findall(r"[A-Za-z_]\w*", name))


def faults_of(root, sections=SECTIONS):
    text = (root / "docs/papers.md").read_text()
    names = Names(root)
    faults = []
    for heading, wanted in sections.items():
        part = re.search(r"^## " + re.escape(heading) + r".*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        if not part:
            faults.append(f"docs/papers.md: no section of {heading}")
            continue
        bold = ", ".join(re.findall(r"^- \*\*([^*]+)\*\*", part[0], re.MULTILINE))
        listed = {word.strip() for word in re.split(r"[,;]", bold)}
        for section in wanted.split():
            if section not in listed:
                faults.append(f"docs/papers.md: {heading}: no line of section {section}")
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        start = text[:text.index(part)].count("\n")
        under = re.search(r"Code under ([^;.]*?) unless", part, re.DOTALL)
        own = re.findall(r"`([^`]+)`", under[1]) if under else []
        for number, item in items_of(part):
            if not item.startswith("- **"):
                continue
            for kind, label in (("code", "Code"), ("tests", "Test")):
                named = re.search(label + r": (.*?)(?= Test: |$)", item)
                folders = list(own)
                for name in re.findall(r"`([^`]+)`", named[1]) if named else []:
                    if " " in name:
                        continue
                    if not names.has(kind, name, folders):
                        faults.append(f"docs/papers.md:{start + number}: {label}: there is no {name}")
                    folders.append(str(pathlib.PurePath(name).parent))
                    folders.append("tessera/" + str(pathlib.PurePath(name).parent))
    return faults


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in {"tessera/room/there.h": "struct Known;", "tests/unit/room_test.cpp": "TEST(Suite, Case) {}",
                           "docs/papers.md": ""}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)

        def faults(lines):
            (root / "docs/papers.md").write_text("# Papers\n\n## Paper, title\n\n" + lines)
            return faults_of(root, {"Paper": "1.1 2"})

        good = "- **1.1, (3)**: a thing. Code: `room/there.h`, `Known`. Test: `Suite.Case`\n- **2**: more. Code: `room`\n"
        assert faults(good) == [], faults(good)
        assert len(faults(good.replace("**2**", "**3**"))) == 1
        assert len(faults(good.replace("there.h", "gone.h"))) == 1
        assert len(faults(good.replace("`Known`", "`Unknown`"))) == 1
        assert len(faults(good.replace("Suite", "Suites"))) == 1


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    faults = faults_of(pathlib.Path(sys.argv[1]))
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
