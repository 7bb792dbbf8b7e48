"""Federations on Flower: server and client apps, `serve`, `join`, and training on remote nodes."""
