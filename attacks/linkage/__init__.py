"""Linkage: which releases belong to the same client."""
