#!/usr/bin/env python3
"""Predicted and measured step time of one GPT under many strategies, in one run.

usage: fidelity.py [--build build] [--ranks 4] [--batch 16] [--model gpt-mini]
                   [--sequence 64] [--steps 8] [--strategies 30] [--simple 6]
                   [--rounds 3] [--most-rounds 6]
                   [--json FILE] [--table FILE] [--keep FOLDER] [--cluster-file FILE]
                   [--least-strategies 30] [--least-spearman 0.6] [--most-factor 2]

Probes the machine under the launcher, then lets `tessera plan --trials` price and train
strategies that the runtime can execute on these ranks, spread over all of them from the
best to the worst: --strategies of the interleaved schedule, --simple of the other. All
are trained again in further rounds, and the round with the least middle of its steps
counts: other load, that of the machine's host too, only adds time, in spells that outlast
a run. A strategy whose two best rounds are more than 3 % apart is not known yet and is
trained in more of them. How far rounds agree says what no prediction can reach. Prints
one table with the cost model's seconds (equation 5 and what was added to it), the
simulator's and the measured ones, peaks of tensors, how far single events are off, and Spearman's
coefficients. The exit status is 1 where a trial failed or the simulator's seconds are
beyond a limit: a machine that other work slows down may need wider ones, and the table
says when there was some.
"""
import argparse
import collections
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import events

AGREED = 0.03  # share by which the two best rounds of a strategy may differ
BUSY = 0.1  # of a processor: above, the machine is not idle


def ranks_of(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in order[at:end]:
            ranks[i] = (at + end - 1) / 2
        at = end
    return ranks


def spearman(a, b):
    x, y = ranks_of(a), ranks_of(b)
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y))
    under = math.sqrt(sum((p - mean_x) ** 2 for p in x) * sum((q - mean_y) ** 2 for q in y))
    return over / under if under else 0.0


def agreement(predicted, measured):
    """Spearman's coefficient, the middle of measured / predicted, and the middle
    distance from that as a share."""
    ratios = sorted(m / p for m, p in zip(measured, predicted))
    middle = ratios[len(ratios) // 2]
    away = sorted(abs(r / middle - 1) for r in ratios)
    return {"spearman": round(spearman(predicted, measured), 3),
            "measured_by_predicted": round(middle, 3),
            "middle_deviation": round(away[len(away) // 2], 3),
            "largest_deviation": round(away[-1], 3)}


Limits = collections.namedtuple("Limits", "strategies spearman factor")


def faults(trials, limits):
    """Why the predictions are not good enough, a line each. A strategy under two
    schedules is one strategy."""
    found = []
    done = [t for t in trials if "measured_s" in t]
    failed = len(trials) - len(done)
    if failed:
        found.append(f"{failed} {'trial' if failed == 1 else 'trials'} failed")
    distinct = {tuple(t.get(key) for key in ("pp", "dp", "tp", "mbs", "tensor_kind", "prescaled_batch",
                                             "stages_per_rank")) for t in done}
    if len(distinct) < limits.strategies:
        found.append(f"{len(distinct)} strategies ran, {limits.strategies} are needed")
    if len(done) > 1:
        figures = agreement([t["predicted_s"] for t in done], [t["measured_s"] for t in done])
        if figures["spearman"] < limits.spearman:
            found.append(f"Spearman {figures['spearman']:.3f} is below {limits.spearman}")
        ratio = figures["measured_by_predicted"]
        if max(ratio, 1 / ratio) > limits.factor:
            found.append(f"steps take {ratio:.2f} times what is predicted in the middle, "
                         f"beyond a factor of {limits.factor}")
    return found


def kind_of(trial):
    if trial["tp"] == 1:
        return "-"
    return trial["tensor_kind"] + (", prescaled" if trial["prescaled_batch"] else "")


class Others:
    """What other programs take from this machine: processor time that is neither idle nor used by
    this process and what it started and waited for."""

    def __init__(self):
        self.began = self.now()

    @staticmethod
    def now():
        with open("/proc/stat") as file:
            ticks = [int(value) for value in file.readline().split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # stolen time included
        return time.monotonic(), busy - sum(os.times()[:4])

    def processors(self):
        """How many processors they used, on average since the beginning."""
        (began, busy_then), (now, busy_now) = self.began, self.now()
        return max(0.0, busy_now - busy_then) / (now - began)


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def peak_ratio(trial):
    """Measured over simulated bytes of tensors, on the rank that has most of them."""
    predicted, measured = trial.get("predicted_peak_bytes"), trial.get("measured_peak_bytes")
    return max(measured) / max(predicted) if predicted and measured else None


def add_events(trials, folder, schedule):
    for number, trial in enumerate(trials, 1):
        if "measured_s" not in trial:
            continue
        name = os.path.join(folder, f"trial_{number}")
        with open(name + ".timeline.json") as run, open(name + ".simulated.json") as simulated:
            trial["events"] = events.ratios(json.load(run), json.load(simulated))
        trial["event_error"] = events.error_of(sum(trial["events"].values(), []))
        trial["files"] = f"{schedule}/trial_{number}"


def train_again(tessera, ranks, folder, number, steps):
    """Trains a kept trial once more; returns the middle of its steps' seconds, without the first
    two, and the name of its timeline."""
    name = os.path.join(folder, f"trial_{number}")
    log, timeline = name + ".again.jsonl", name + ".again.timeline.json"
    if os.path.exists(log):
        os.remove(log)
    subprocess.run(
        [tessera, "launch", "-n", str(ranks), "--", tessera, "train", name + ".json",
         "--steps", str(steps), "--log", log, "--timeline", timeline],
        check=True, stdout=subprocess.DEVNULL)
    with open(log) as file:
        records = [json.loads(line) for line in file]
    return median([one["step_seconds"] for one in records if one["type"] == "step"][2:]), timeline


def is_known(rounds):
    """Whether the two best of a strategy's rounds agree."""
    best = sorted(rounds)[:2]
    return len(best) == 2 and best[1] <= best[0] * (1 + AGREED)


def add_rounds(tessera, options, folder, trials):
    """Trains each trial in further rounds, and keeps the figures of its best one."""
    for trial in trials:
        trial["rounds_s"] = [trial["measured_s"]] if "measured_s" in trial else []
    for done in range(1, options.most_rounds):
        for number, trial in enumerate(trials, 1):
            known = done >= options.rounds and is_known(trial["rounds_s"])
            if "measured_s" not in trial or known:
                continue
            seconds, timeline = train_again(
                tessera, options.ranks, folder, number, options.steps)
            trial["rounds_s"].append(seconds)
            if seconds < trial["measured_s"]:
                trial["measured_s"] = seconds
                os.replace(timeline, os.path.join(folder, f"trial_{number}.timeline.json"))


def repeatability(trials):
    """How far the second round agrees with the first: Spearman's coefficient, and the middle
    distance of their ratios from 1."""
    pairs = [t["rounds_s"][:2] for t in trials if len(t["rounds_s"]) > 1]
    if len(pairs) < 2:
        return None
    before, after = zip(*pairs)
    return {"spearman": round(spearman(before, after), 3),
            "middle_difference": round(events.error_of([b / a for a, b in pairs]), 3)}


def text_of(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="gpt-mini")
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--strategies", type=int, default=30)
    parser.add_argument("--simple", type=int, default=6, help="strategies under the simple schedule")
    parser.add_argument("--rounds", type=int, default=3, help="in which every strategy is trained")
    parser.add_argument("--most-rounds", type=int, default=6,
                        help="for a strategy whose two best are more than 3 %% apart")
    parser.add_argument("--keep", help="a folder for the files of every trial")
    parser.add_argument("--cluster-file", help="in place of a probe")
    parser.add_argument("--json")
    parser.add_argument("--table", help="the table as Markdown")
    parser.add_argument("--least-strategies", type=int, default=30,
                        help="distinct ones; schedules do not count")
    parser.add_argument("--least-spearman", type=float, default=0.6)
    parser.add_argument("--most-factor", type=float, default=2,
                        help="between measured and predicted in the middle")
    options = parser.parse_args()
    tessera = os.path.abspath(os.path.join(options.build, "bin", "tessera"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    load = os.getloadavg()[0]
    others = Others()
    trials = []
    with tempfile.TemporaryDirectory() as work:
        if options.keep:
            os.makedirs(options.keep, exist_ok=True)
        cluster = options.cluster_file or os.path.join(options.keep or work, "cluster.json")
        if not options.cluster_file:
            subprocess.run(
                [tessera, "launch", "-n", str(options.ranks), "--", tessera, "probe",
                 "-o", cluster], check=True)
        for schedule, count in (("interleaved", options.strategies), ("simple", options.simple)):
            if count == 0:
                continue
            kept = os.path.join(work, schedule + ".json")
            folder = os.path.join(options.keep or work, schedule)
            subprocess.run(
                [tessera, "plan", "--model", options.model, "--sequence", str(options.sequence),
                 "--global-batch-size", str(options.batch), "--cluster-file", cluster,
                 "--schedule", schedule, "--trials", str(count), "--spread-trials",
                 "--keep-trials", folder,
                 "--trial-steps", str(options.steps), "--calibration-file", kept],
                check=True)
            with open(kept) as file:
                these = json.load(file)["trials"]
            add_rounds(tessera, options, folder, these)
            add_events(these, folder, schedule)
            trials += these
        with open(cluster) as file:
            machine = json.load(file)
    busy = others.processors()
    done = [t for t in trials if "measured_s" in t]
    done.sort(key=lambda t: t["predicted_s"])
    peaks = [ratio for ratio in map(peak_ratio, done) if ratio is not None]
    by_category = {
        category: sum((t["events"].get(category, []) for t in done), [])
        for category in events.CATEGORIES}
    all_events = sum(by_category.values(), [])
    measured = [t["measured_s"] for t in done]
    result = {
        "command": " ".join(sys.argv), "model": options.model, "sequence": options.sequence,
        "batch": options.batch, "ranks": options.ranks, "processors": os.cpu_count(),
        "nodes": machine["nodes"], "probe": machine["probe"], "load_average_before": load,
        "processors_of_others": round(busy, 2),
        "peak_error": events.error_of(peaks), "event_error": events.error_of(all_events),
        "events": {category: {"count": len(values), "middle_ratio": median(values),
                              "error": events.error_of(values)}
                   for category, values in by_category.items()},
        "rounds": options.rounds, "repeatability": repeatability(done),
        "known": sum(is_known(t["rounds_s"]) for t in done),
        "seconds": round(time.monotonic() - began), "strategies": len(done),
        "simulator": agreement([t["predicted_s"] for t in done], measured),
        "cost_model": agreement([t["estimated_s"] for t in done], measured), "trials": trials}
    for trial in done:
        trial["events"] = {category: round(median(values), 3)
                           for category, values in trial["events"].items()}
    lines = [
        f"{options.model}, sequence {options.sequence}, batch {options.batch}, {options.ranks} ranks on "
        f"{os.cpu_count()} processors; load average before: {load:.1f}; other programs used {busy:.2f} "
        f"processors during the run" + (": NOT idle" if busy > BUSY else ": idle"), "",
        "| pp | dp | tp | kind | microbatch | stages a rank | schedule | cost model s "
        "| simulator s | measured s | measured / simulator | peak MiB, simulated "
        "| measured / simulated | events off by |",
        "|" + " --- |" * 14]
    for t in done:
        lines.append(
            f"| {t['pp']} | {t['dp']} | {t['tp']} | {kind_of(t)} | {t['mbs']} "
            f"| {t['stages_per_rank']} | {t['schedule']} "
            f"| {t['estimated_s']:.4f} | {t['predicted_s']:.4f} | {t['measured_s']:.4f} "
            f"| {t['measured_s'] / t['predicted_s']:.2f} "
            f"| {max(t['predicted_peak_bytes']) / 2 ** 20:.1f} | {text_of(peak_ratio(t))} "
            f"| {text_of(t['event_error'])} |")
    for t in trials:
        if "failure" in t:
            lines.append(f"| {t['pp']} | {t['dp']} | {t['tp']} | {kind_of(t)} | {t['mbs']} "
                         f"| {t['stages_per_rank']} | {t['schedule']} | {t['estimated_s']:.4f} "
                         f"| {t['predicted_s']:.4f} | failed: {t['failure']} | | | | |")
    lines.append("")
    again = result["repeatability"]
    if again:
        lines.append(
            f"best of {options.rounds} to {options.most_rounds} rounds; the first two of them: Spearman "
            f"{again['spearman']:.3f}, {100 * again['middle_difference']:.0f} % apart in the middle; "
            f"{result['known']} strategies have two rounds within {100 * AGREED:.0f} %.")
    for name in ("simulator", "cost_model"):
        figures = result[name]
        lines.append(
            f"{name.replace('_', ' ')}: Spearman {figures['spearman']:.3f}; measured / predicted "
            f"{figures['measured_by_predicted']:.2f} in the middle, half of them within "
            f"{100 * figures['middle_deviation']:.0f} % of that, all within "
            f"{100 * figures['largest_deviation']:.0f} %.")
    if peaks:
        lines.append(
            f"peak of tensors: {100 * events.error_of(peaks):.1f} % off in the middle, measured / "
            f"simulated {median(peaks):.2f}, from {min(peaks):.2f} to {max(peaks):.2f}.")
    for category, values in by_category.items():
        if values:
            lines.append(
                f"{len(values)} {category} events: {100 * events.error_of(values):.0f} % off in the "
                f"middle, measured / simulated {median(values):.2f}.")
    if all_events:
        lines.append(
            f"all {len(all_events)} events: {100 * events.error_of(all_events):.0f} % off in the "
            "middle.")
    lines.append(f"{len(done)} strategies in {result['seconds']} s.")
    text = "\n".join(lines) + "\n"
    print("\n" + text)
    if options.table:
        with open(options.table, "w") as file:
            file.write(text)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    found = faults(trials, Limits(
        options.least_strategies, options.least_spearman, options.most_factor))
    for fault in found:
        print(f"fidelity: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
