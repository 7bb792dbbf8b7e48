"""Guarantees: mechanisms, ledgers, audits."""
