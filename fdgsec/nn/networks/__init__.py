"""Classifiers and the other networks that several methods or attacks share."""
