#!/usr/bin/env python3
"""Draws one training step of a recorded timeline: a row a rank, a box a microbatch.

  step.py ROOT [--check]      writes docs/figures/step.svg from docs/figures/step.timeline.json,
                              or says whether it is renewed
  step.py TIMELINE SVG [STEP] draws a step (the last one) of any file of tessera train --timeline

The recorded run is the one of docs/figures/README.md.
"""

import json
import pathlib
import sys

WIDTH, LEFT, RIGHT, TOP, ROW, BOX = 1000, 120, 16, 74, 52, 34
MERGE = 0.002  # pieces of one microbatch that are closer than this share of the step are one box
FILLS = {"forward": "#9ec5e8", "backward": "#f2b880", "comm": "#c3a6d8", "optimizer": "#c4c4c4"}
WORDS = {"forward": "forward", "backward": "backward", "comm": "communication", "optimizer": "optimizer's step"}


def united(pieces, gap):
    """Sorted disjoint intervals that cover `pieces`; gaps of at most `gap` are closed."""
    result = []
    for start, end in sorted(pieces):
        if result and start - result[-1][1] <= gap:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result


def without(pieces, holes):
    """`pieces` less `holes`; both are sorted and disjoint."""
    result = []
    for start, end in pieces:
        for hole_start, hole_end in holes:
            if hole_start < end and hole_end > start:
                if hole_start > start:
                    result.append([start, hole_start])
                start = max(start, hole_end)
        if start < end:
            result.append([start, end])
    return result


def boxes_of(events, gap):
    """(rank, category, microbatch, start, end) of each stretch of work; waits interrupt their lane."""
    waits, lanes, work = {}, {}, {}
    for event in events:
        time = (event["start_us"], event["end_us"])
        lane = (event["rank"], event["lane"])
        if event["category"] == "wait":
            waits.setdefault(lane, []).append(time)
        elif event["category"] in FILLS:
            lanes.setdefault((*lane, event["category"], event["microbatch"]), []).append(time)
    for (rank, lane, category, microbatch), pieces in lanes.items():
        running = without(united(pieces, 0), united(waits.get((rank, lane), []), 0))
        work.setdefault((rank, category, microbatch), []).extend(running)
    return [(*key, start, end) for key, pieces in sorted(work.items()) for start, end in united(pieces, gap)]


def tick_of(span_ms):
    """The round number of milliseconds that divides the step into at most ten parts."""
    tick = 1
    for factor in (2, 2.5, 2) * 5:
        if span_ms / tick <= 10:
            break
        tick *= factor
    return tick


def draw(timeline, step):
    events = [event for event in timeline["events"] if event["step"] == step]
    if not events:
        sys.exit(f"the timeline has no event of step {step}; write one of "
                 f"{sorted({event['step'] for event in timeline['events']})}")
    ranks = sorted({(event["rank"], event["pp_rank"]) for event in events})
    drawn = [event for event in events if event["category"] in FILLS]
    first, last = min(e["start_us"] for e in drawn), max(e["end_us"] for e in drawn)
    boxes = boxes_of(events, MERGE * (last - first))
    scale = (WIDTH - LEFT - RIGHT) / (last - first)
    x_of = lambda time: LEFT + (time - first) * scale
    height = TOP + ROW * len(ranks) + 30
    microbatches = len({microbatch for _, _, microbatch, _, _ in boxes if microbatch >= 0})
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<title>Timeline of a training step on {len(ranks)} ranks</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold">One training step, as recorded: {microbatches} microbatches on '
        f'{len(ranks)} ranks, {(last - first) / 1e3:.0f} ms</text>',
    ]
    x = 8
    for category in (name for name in FILLS if any(box[1] == name for box in boxes)):
        out.append(f'<rect x="{x}" y="34" width="13" height="13" fill="{FILLS[category]}" stroke="#555"/>')
        out.append(f'<text x="{x + 19}" y="45">{WORDS[category]}</text>')
        x += 40 + 8 * len(WORDS[category])
    out.append(f'<rect x="{x}" y="34" width="13" height="13" fill="#eeeeee"/><text x="{x + 19}" y="45">idle; '
               'the number in a box is its microbatch</text>')
    for number, (rank, pp_rank) in enumerate(ranks):
        y = TOP + ROW * number
        own = [box for box in boxes if box[0] == rank]
        # Communication lies below the computation that it overlaps.
        busy = sum(end - start for start, end in united([box[3:] for box in own if box[1] != "comm"], 0))
        out.append(f'<text x="8" y="{y + 15}">rank {rank} (pp {pp_rank})</text>')
        out.append(f'<text x="8" y="{y + 31}" fill="#666">idle {100 - 100 * busy / (last - first):.0f} %</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{BOX}" fill="#eeeeee"/>')
        for _, category, microbatch, start, end in own:
            width = (end - start) * scale
            top, box_height = (y + BOX + 1, 6) if category == "comm" else (y, BOX)
            name = WORDS[category] + (f" of microbatch {microbatch}" if microbatch >= 0 else "")
            out.append(
                f'<g><title>rank {rank}: {name}, {(end - start) / 1e3:.1f} ms</title>'
                f'<rect x="{x_of(start):.1f}" y="{top}" width="{width:.1f}" height="{box_height}" '
                f'fill="{FILLS[category]}" stroke="#555" stroke-width="0.6"/>')
            if microbatch >= 0 and width >= 10 and category != "comm":
                out.append(f'<text x="{x_of(start) + width / 2:.1f}" y="{y + 22}" '
                           f'text-anchor="middle">{microbatch}</text>')
            out.append("</g>")
    axis = TOP + ROW * len(ranks)
    tick = tick_of((last - first) / 1e3)
    for number in range(int((last - first) / 1e3 / tick) + 1):
        at = x_of(first + number * tick * 1e3)
        out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{axis - 6}" y2="{axis}" stroke="#777"/>')
        out.append(f'<text x="{at:.1f}" y="{axis + 14}" text-anchor="middle" fill="#666">{number * tick:g} ms</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    arguments = sys.argv[1:]
    check = arguments[1:] == ["--check"]
    if check or len(arguments) == 1:
        folder = pathlib.Path(arguments[0]) / "docs/figures"
        source, target, step = folder / "step.timeline.json", folder / "step.svg", None
    elif len(arguments) in (2, 3):
        source, target = map(pathlib.Path, arguments[:2])
        step = int(arguments[2]) if len(arguments) == 3 else None
    else:
        sys.exit(__doc__)
    timeline = json.loads(source.read_text())
    if step is None:
        step = max(event["step"] for event in timeline["events"])
    drawing = draw(timeline, step)
    if not check:
        target.write_text(drawing)
    elif not target.exists() or target.read_text() != drawing:
        sys.exit(f"{target} is not renewed; run docs/figures/step.py .")


if __name__ == "__main__":
    main()
