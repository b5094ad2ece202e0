#!/usr/bin/env python3
"""What fidelity.py calls a failure: too few strategies, a wrong order, times that are far off."""
import unittest

import events
import fidelity
import probes


def trials(pairs, schedules=("interleaved",)):
    return [{"pp": 1, "dp": 4, "tp": 1, "mbs": i + 1, "schedule": schedule,
             "predicted_s": predicted, "estimated_s": predicted, "measured_s": measured}
            for i, (predicted, measured) in enumerate(pairs) for schedule in schedules]


LIMITS = fidelity.Limits(strategies=4, spearman=0.7, factor=2.0)


class Verdict(unittest.TestCase):
    def test_what_agrees_passes(self):
        self.assertEqual(
            fidelity.faults(trials([(1, 1.1), (2, 2.3), (3, 2.9), (4, 4.4)]), LIMITS), [])

    def test_schedules_of_one_strategy_count_once(self):
        found = fidelity.faults(
            trials([(1, 1), (2, 2)], schedules=("interleaved", "simple")), LIMITS)
        self.assertEqual(len(found), 1)
        self.assertIn("2 strategies", found[0])

    def test_a_wrong_order_fails(self):
        found = fidelity.faults(trials([(1, 4), (2, 3), (3, 2.5), (4, 2.2)]), LIMITS)
        self.assertIn("Spearman -1.000", found[0])

    def test_times_that_are_far_off_fail(self):
        found = fidelity.faults(trials([(1, 3), (2, 6), (3, 9), (4, 12)]), LIMITS)
        self.assertEqual(len(found), 1)
        self.assertIn("3.00 times", found[0])

    def test_failed_trials_fail(self):
        some = trials([(1, 1), (2, 2), (3, 3), (4, 4)])
        some.append({"pp": 2, "dp": 2, "tp": 1, "mbs": 1, "schedule": "simple", "predicted_s": 1,
                     "estimated_s": 1, "failure": "out of memory"})
        self.assertIn("1 trial failed", fidelity.faults(some, LIMITS)[0])


class Rounds(unittest.TestCase):
    def test_the_first_two_rounds_say_what_no_prediction_can_reach(self):
        some = [{"rounds_s": [1, 1.5]}, {"rounds_s": [2, 2, 9]}, {"rounds_s": [3, 1.2, 9, 9]}]
        self.assertEqual(fidelity.repeatability(some),
                         {"spearman": -0.5, "middle_difference": 0.5})

    def test_one_round_says_nothing_of_it(self):
        self.assertIsNone(fidelity.repeatability([{"rounds_s": [1]}, {"rounds_s": [2]}]))

    def test_a_strategy_is_known_when_its_best_two_rounds_agree(self):
        self.assertFalse(fidelity.is_known([1.0]))
        self.assertFalse(fidelity.is_known([1.5, 1.0, 1.5]))  # two alike, a third better
        self.assertTrue(fidelity.is_known([1.5, 1.0, 1.02]))


def event(category, microbatch, start, end, rank=0, step=0, stage=0):
    return {"rank": rank, "pp_rank": stage, "category": category, "microbatch": microbatch,
            "step": step, "start_us": start, "end_us": end}


class Events(unittest.TestCase):
    def test_turns_of_a_microbatch_add_up_and_steps_give_a_median(self):
        run = {"events": [
            event("forward", 0, 0, 100), event("forward", 0, 200, 250),
            event("forward", 0, 0, 10, step=1), event("forward", 0, 0, 300, step=2),
            event("comm", 3, 0, 70)]}  # an activation on its way
        self.assertEqual(events.durations(run), {(0, "forward", 0): 150})

    def test_what_lies_in_each_other_counts_once(self):
        run = {"events": [event("backward", 1, 0, 100), event("backward", 1, 20, 60)]}
        self.assertEqual(events.durations(run), {(0, "backward", 1): 100})

    def test_waiting_for_the_last_rank_is_no_time_of_an_exchange(self):
        run = {"events": [
            event("comm", -1, 0, 100), event("comm", -1, 80, 101, rank=1),
            event("comm", -1, 0, 7, rank=2, stage=1)]}
        self.assertEqual(events.durations(run), {
            (0, "comm", -1): 21, (1, "comm", -1): 21, (2, "comm", -1): 7})

    def test_ratios_are_of_events_that_both_have(self):
        run = {"events": [event("forward", 0, 0, 150), event("optimizer", -1, 200, 260)]}
        simulated = {"events": [event("forward", 0, 0, 100), event("forward", 1, 100, 200),
                                event("optimizer", -1, 300, 310)]}  # too short to say anything
        self.assertEqual(events.ratios(run, simulated), {"forward": [1.5]})
        self.assertEqual(events.error_of([0.5, 1.1, 1.2]), 0.19999999999999996)


class Probes(unittest.TestCase):
    def test_nineteen_of_twenty_are_asked_for(self):
        some = [{"plan": "a", "busy": False}] * 19 + [{"plan": "b", "busy": False}]
        self.assertEqual(probes.verdict(some, 0, 19), "")
        self.assertIn("18 times in 20", probes.verdict(some[1:] + some[-1:], 0, 19))

    def test_load_that_a_probe_does_not_see_fails(self):
        some = [{"plan": "a", "busy": True}, {"plan": "b", "busy": False}]
        self.assertIn("1 of 2", probes.verdict(some, 2, 19))
        self.assertEqual(probes.verdict(some[:1], 2, 19), "")


if __name__ == "__main__":
    unittest.main()
