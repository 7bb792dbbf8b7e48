"""Gradient inversion: images and labels from one update."""
