"""A run's timeline beside the simulated one of the same strategy: how long each event takes.

An event is what a rank does of one microbatch in one direction, its exchange of
gradients, or its optimizer step: (rank, category, microbatch). Where a run has
several events of one key, as turns of a step function, their times add up. Ranks that
come early to an exchange wait for the others, which is no time of the exchange: that of
the rank that waits least, the last to come, counts for all of its stage.
"""
import collections
import statistics

CATEGORIES = ("forward", "backward", "comm", "optimizer")
LEAST_US = 50  # of a simulated event; shorter ones are the clock's noise


def without_overlap(intervals):
    total, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def durations(timeline):
    """Key -> microseconds, the median over the steps of the timeline."""
    found = collections.defaultdict(list)
    for event in timeline["events"]:
        category = event["category"]
        # Simulated activations travel beside computation; a run records no event of them.
        if category not in CATEGORIES or (category == "comm" and event["microbatch"] >= 0):
            continue
        key = (event["rank"], category, event["microbatch"], event["step"])
        found[key].append((event["start_us"], event["end_us"]))
    stages = {event["rank"]: event["pp_rank"] for event in timeline["events"]}
    taken = {key: without_overlap(intervals) for key, intervals in found.items()}
    least = collections.defaultdict(lambda: float("inf"))  # of a stage's exchanges, by step
    for (rank, category, _, step), time in taken.items():
        if category == "comm":
            least[stages[rank], step] = min(least[stages[rank], step], time)
    steps = collections.defaultdict(list)
    for (rank, category, microbatch, step), time in taken.items():
        steps[rank, category, microbatch].append(
            least[stages[rank], step] if category == "comm" else time)
    return {key: statistics.median(values) for key, values in steps.items()}


def span_us(timeline):
    """From the first event to the end of the last, the median over the steps."""
    steps = collections.defaultdict(list)
    for event in timeline["events"]:
        if event["category"] in CATEGORIES:
            steps[event["step"]] += [event["start_us"], event["end_us"]]
    return statistics.median(max(times) - min(times) for times in steps.values())


def ratios(measured, simulated):
    """Measured over simulated of every event that both have, by category."""
    mine, theirs = durations(measured), durations(simulated)
    result = collections.defaultdict(list)
    for key, predicted in theirs.items():
        if key in mine and predicted >= LEAST_US:
            result[key[1]].append(mine[key] / predicted)
    return dict(result)


def error_of(values):
    """The median distance of ratios from 1."""
    return statistics.median(abs(value - 1) for value in values) if values else None
