#!/usr/bin/env python3
"""What fidelity.py calls a failure: too few strategies, a wrong order, times that are far off."""
import unittest

import fidelity


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


if __name__ == "__main__":
    unittest.main()
