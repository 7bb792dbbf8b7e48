"""Datasets, roles and partitions: everything from files on disk to the images of each client."""
