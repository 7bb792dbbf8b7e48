"""Inference by a curious client about the others."""
