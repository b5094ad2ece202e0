#!/usr/bin/env python3
"""Checks how the files of tessera/, models/ and cli/ include each other.

  rooms.py CHECK ROOT      CHECK: layers circles private facade self_test

A room is a folder with a row in cmake/layers.txt; a file belongs to the longest row that its path
begins with. A unit is a header together with the source of the same name.
  layers     a room includes only the rooms of its row; libtorch and <mpi.h> only where the row allows
  circles    no unit, and no room, includes itself through others; of models/ and cli/, which have no rows, each
             folder of the first level is a room
  private    an installed header (HEADERS in its room's CMakeLists.txt) includes installed ones only; one that
             is neither installed nor listed as INTERNAL is included by its own room only
  facade     tessera/tessera.h reaches no more headers of the library than it did
Prints what is wrong, one line each; the exit status is 1 when anything is.
"""

import pathlib
import re
import sys
import tempfile

# The aim is 20. Lower the number with every header that leaves, never raise it.
MOST_HEADERS_OF_THE_FACADE = 57

# Folders that only `circles` looks at.
WITHOUT_ROWS = ("models", "cli")


class Room:
    def __init__(self, name, flags, allowed):
        self.name, self.flags, self.allowed = name, flags, allowed


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.rooms = {}
        for line in (self.root / "cmake/layers.txt").read_text().splitlines():
            row = re.fullmatch(r"([a-z0-9_/]+)( [TM]+)?:(.*)", line)
            if row:
                self.rooms[row[1]] = Room(row[1], row[2] or "", row[3].split())
            elif line.strip() and not line.startswith("#"):
                raise SystemExit(f"cmake/layers.txt: cannot read the row '{line}'")
        self.includes = self.includes_below("tessera")

    def includes_below(self, folder):
        found = {}
        for path in sorted((self.root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                found[str(path.relative_to(self.root))] = re.findall(
                    r'^#include ([<"][^>"]+[>"])', path.read_text(), re.MULTILINE)
        return found

    def room_of(self, file):
        folder = pathlib.PurePath(file).relative_to("tessera").parent
        for candidate in (folder, *folder.parents):
            if str(candidate) in self.rooms:
                return self.rooms[str(candidate)]
        return None

    def ours(self, file):
        return [name[1:-1] for name in self.includes[file] if name.startswith('"tessera/')]


def layers(tree):
    for room in tree.rooms.values():
        for name in room.allowed:
            if name not in tree.rooms:
                yield f"cmake/layers.txt: {room.name} may include '{name}', which has no row"
    for file, includes in tree.includes.items():
        if pathlib.PurePath(file).parent == pathlib.PurePath("tessera"):
            continue  # the facade
        room = tree.room_of(file)
        if room is None:
            yield f"{file}: its folder has no row in cmake/layers.txt"
            continue
        for name in includes:
            if name.startswith('"tessera/'):
                other = tree.room_of(name[1:-1])
                if other is None:
                    yield f"{file}: {name} belongs to no room"
                elif other is not room and other.name not in room.allowed:
                    yield f"{file}: {room.name} may not include {other.name}"
            elif re.match(r"<(torch|ATen|c10)/", name) and "T" not in room.flags:
                yield f"{file}: {room.name} may not include libtorch"
            elif name == "<mpi.h>" and "M" not in room.flags:
                yield f"{file}: {room.name} may not include <mpi.h>"


def unit_of(file):
    return re.sub(r"\.(h|cpp|cu)$", "", file)


def circles(tree):
    yield from circles_of(tree.includes, lambda file: tree.room_of(file) and tree.room_of(file).name)
    for top in WITHOUT_ROWS:
        yield from circles_of(
            tree.includes_below(top), lambda file: "/".join(pathlib.PurePath(file).parent.parts[:2]))


def circles_of(includes, name_of_room):
    units, rooms = {}, {}
    for file, names in includes.items():
        others = [name[1:-1] for name in names if name[1:-1] in includes]
        unit, room = unit_of(file), name_of_room(file)
        units.setdefault(unit, set()).update(
            other for other in map(unit_of, others) if other != unit)
        if room is not None:
            rooms.setdefault(room, set()).update(
                other for other in map(name_of_room, others) if other not in (None, room))
    for graph in (units, rooms):
        for members in connected(graph):
            yield "these include each other in a circle: " + ", ".join(members)


def connected(graph):
    """The strongly connected components of more than one member (Tarjan's algorithm)."""
    sys.setrecursionlimit(100000)
    number, low, stack, found = {}, {}, [], []

    def visit(unit):
        number[unit] = low[unit] = len(number)
        stack.append(unit)
        for other in sorted(graph.get(unit, ())):
            if other not in number:
                visit(other)
                low[unit] = min(low[unit], low[other])
            elif other in stack:
                low[unit] = min(low[unit], number[other])
        if low[unit] == number[unit]:
            at = stack.index(unit)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for unit in sorted(graph):
        if unit not in number:
            visit(unit)
    return [members for members in found if len(members) > 1]


def listed_headers(tree):
    """The headers that CMakeLists.txt files list: the installed ones, and those after INTERNAL."""
    installed, internal = {"tessera/tessera.h"}, set()
    for path in (tree.root / "tessera").rglob("CMakeLists.txt"):
        folder = path.parent.relative_to(tree.root)
        kind = installed
        for word in re.sub(r"#[^\n]*", "", path.read_text()).replace("(", " ").replace(")", " ").split():
            if word.isupper():
                kind = internal if word == "INTERNAL" else installed
            elif word.endswith(".h"):
                kind.add(str(folder / word))
    return installed, internal


def private(tree):
    installed, internal = listed_headers(tree)
    for header in sorted(installed | internal):
        if header not in tree.includes:
            yield f"{header} is listed in a CMakeLists.txt, but there is no such file"
    for file in tree.includes:
        for other in tree.ours(file):
            if other not in tree.includes:
                yield f"{file}: there is no {other}"
            elif file in installed and other not in installed:
                yield f"{file} is installed and includes {other}, which is not"
            elif other not in installed | internal and tree.room_of(other) is not tree.room_of(file):
                yield f"{file}: {other} is private to {tree.room_of(other).name}"


def facade(tree):
    reached, waiting = set(), ["tessera/tessera.h"]
    while waiting:
        file = waiting.pop()
        if file not in reached and file in tree.includes:
            reached.add(file)
            waiting += tree.ours(file)
    reached.discard("tessera/tessera.h")
    if len(reached) > MOST_HEADERS_OF_THE_FACADE:
        yield (f"tessera/tessera.h reaches {len(reached)} headers of the library, more than "
               f"{MOST_HEADERS_OF_THE_FACADE}: " + " ".join(sorted(reached)))


CHECKS = {"layers": layers, "circles": circles, "private": private, "facade": facade}


def self_test(_):
    """Each check must find what it is there to find, and nothing in a clean tree."""
    good = {
        "cmake/layers.txt": "base:\na T: base\na/deep TM: a base\n",
        "tessera/tessera.h": '#include "tessera/a/a.h"\n',
        "tessera/base/CMakeLists.txt": "x(HEADERS b.h)\n",
        "tessera/base/b.h": "",
        "tessera/a/CMakeLists.txt": "x(HEADERS a.h deep/d.h SOURCES a.cpp)\n",
        "tessera/a/a.h": '#include "tessera/base/b.h"\n#include <torch/torch.h>\n',
        "tessera/a/a.cpp": '#include "tessera/a/a.h"\n#include "tessera/a/own.h"\n',
        "tessera/a/own.h": "",
        "tessera/a/deep/d.h": '#include "tessera/a/a.h"\n#include <mpi.h>\n',
    }
    bad = {
        "layers": {"tessera/base/b.h": '#include "tessera/a/deep/d.h"\n', "tessera/a/a.h": "#include <mpi.h>\n"},
        "circles": {"tessera/a/own.h": '#include "tessera/a/deep/d.h"\n',
                    "tessera/a/deep/d.h": '#include "tessera/a/own.h"\n',
                    "cli/a/a.h": '#include "cli/b/b.h"\n',
                    "cli/b/b.h": "", "cli/a/d.h": "",
                    "cli/b/c.h": '#include "cli/a/d.h"\n'},
        "private": {"tessera/a/deep/d.h": '#include "tessera/a/own.h"\n',
                    "tessera/a/a.h": '#include "tessera/a/own.h"\n'},
        "facade": {"tessera/tessera.h": "".join(f'#include "tessera/base/h{i}.h"\n' for i in range(MOST_HEADERS_OF_THE_FACADE + 1)),
                   **{f"tessera/base/h{i}.h": "" for i in range(MOST_HEADERS_OF_THE_FACADE + 1)}},
    }
    expected = {"layers": 2, "circles": 3, "private": 2, "facade": 1}
    for check in CHECKS:
        for changes, count in (({}, 0), (bad[check], expected[check])):
            with tempfile.TemporaryDirectory() as folder:
                for name, text in {**good, **changes}.items():
                    path = pathlib.Path(folder, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                found = list(CHECKS[check](Tree(folder)))
            if len(found) != count:
                yield f"check {check}: expected {count} findings, found {found}"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in (*CHECKS, "self_test"):
        sys.exit(__doc__)
    if sys.argv[1] == "self_test":
        found = list(self_test(sys.argv[2]))
    else:
        found = list(CHECKS[sys.argv[1]](Tree(sys.argv[2])))
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
