"""A federation of four small clients on shapes, for tests that walk a method through the round loop."""

from fdgsec.testing.small_federation import CLIENTS, ROUNDS, Outcome, federated, four_clients

__all__ = ["CLIENTS", "ROUNDS", "Outcome", "federated", "four_clients"]
