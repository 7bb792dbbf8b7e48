"""Differencing: one record told from two releases that differ in it."""
