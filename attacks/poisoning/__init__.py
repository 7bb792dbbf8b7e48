"""Poisoning: harm done by a malicious client."""
