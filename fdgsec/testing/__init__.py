"""Contract checks for plug-in methods, attacks and defenses (docs/extending.md)."""

from fdgsec.testing.attacks import check_attack as check_attack
from fdgsec.testing.contracts import BrokenPromiseError as BrokenPromiseError
from fdgsec.testing.defenses import check_defense as check_defense
from fdgsec.testing.methods import check_method as check_method
