#!/usr/bin/env python3
"""Draws cmake/layers.txt: a box a room, each above everything it includes.

  layers.py ROOT [--check]      writes docs/figures/layers.svg, or says whether it is renewed
"""

import pathlib
import re
import sys

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, LEFT, TOP = 118, 30, 10, 16, 90, 46
COLOURS = {"decides": "#dcebf7", "executes": "#f7e6d4"}


def read_rooms(root):
    rooms = {}
    for line in (root / "cmake/layers.txt").read_text().splitlines():
        row = re.fullmatch(r"([a-z0-9_/]+)( [TM]+)?:(.*)", line)
        if row:
            rooms[row[1]] = (row[2] or "", row[3].split())
    return rooms


def used_rooms(root, rooms):
    """The rooms that a room really includes, which may be fewer than its row allows."""
    def room_of(path):
        folder = pathlib.PurePath(path).relative_to("tessera").parent
        return next((str(f) for f in (folder, *folder.parents) if str(f) in rooms), None)

    used = {name: set() for name in rooms}
    for path in sorted((root / "tessera").rglob("*")):
        if path.suffix in (".h", ".cpp", ".cu"):
            room = room_of(path.relative_to(root))
            for name in re.findall(r'^#include "(tessera/[^"]+)"', path.read_text(), re.MULTILINE):
                other = room_of(name)
                if room and other and other != room:
                    used[room].add(other)
    return used


def level_of(room, used, levels, above=()):
    if room in above:
        sys.exit("rooms include each other in a circle: " + " -> ".join((*above, room)))
    if room not in levels:
        levels[room] = 1 + max(
            (level_of(other, used, levels, (*above, room)) for other in used[room]), default=-1)
    return levels[room]


def draw(root):
    rooms = read_rooms(root)
    used = used_rooms(root, rooms)
    levels = {}
    for room in rooms:
        level_of(room, used, levels)
    rows = [[room for room in rooms if levels[room] == level] for level in range(max(levels.values()) + 1)]
    width = LEFT + max(map(len, rows)) * (BOX_WIDTH + GAP_X) + GAP_X
    height = TOP + len(rows) * (BOX_HEIGHT + GAP_Y)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="8" y="18" font-weight="bold">Rooms of tessera/: each includes only rooms below it</text>',
    ]
    for i, (kind, text) in enumerate((("decides", "decides: no libtorch"), ("executes", "executes"))):
        x = 8 + 160 * i
        out.append(f'<rect x="{x}" y="25" width="12" height="12" fill="{COLOURS[kind]}" stroke="#777"/>')
        out.append(f'<text x="{x + 18}" y="36">{text}</text>')
    for number, row in enumerate(rows):
        y = TOP + (len(rows) - 1 - number) * (BOX_HEIGHT + GAP_Y)
        out.append(f'<text x="8" y="{y + 20}" fill="#777">level {number}</text>')
        for column, room in enumerate(row):
            x = LEFT + column * (BOX_WIDTH + GAP_X)
            colour = COLOURS["executes" if "T" in rooms[room][0] else "decides"]
            below = ", ".join(sorted(used[room])) or "nothing"
            out.append(
                f'<g><title>{room} includes {below}</title>'
                f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" '
                f'fill="{colour}" stroke="#777"/>'
                f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + 20}" text-anchor="middle">{room}</text></g>')
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--check"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    file = root / "docs/figures/layers.svg"
    drawing = draw(root)
    if len(sys.argv) == 2:
        file.write_text(drawing)
    elif not file.exists() or file.read_text() != drawing:
        sys.exit("docs/figures/layers.svg is not renewed; run docs/figures/layers.py .")


if __name__ == "__main__":
    main()
