"""Membership inference on released styles."""
