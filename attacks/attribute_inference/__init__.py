"""Attribute inference: class shares, domains and single labels of a client's images."""
