"""Attacks: one family, one folder."""
