"""How released codes write the style of a single image."""

from collections.abc import Sequence

from fdgsec.nn.styles.channel_statistics import EPS

CONVENTIONS: Sequence[tuple[bool, float]] = ((True, EPS), (True, 1e-6), (False, EPS), (False, 1e-6))
"""Divisor (HW - 1 or HW) and epsilon of the stds that released codes send (CCST's; FedAlign's)."""
