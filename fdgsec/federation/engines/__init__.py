"""Engines that run a federation: in this process, or across machines."""
