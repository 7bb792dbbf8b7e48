"""Datasets, roles and partitions: everything between the disk and a client."""
