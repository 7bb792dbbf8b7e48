"""Errors, random streams, files, processes and names: what every other package needs, and nothing about learning."""
