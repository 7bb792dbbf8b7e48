"""Answers that are independent of the truth, for `benchmarks.false_alarms`."""
