"""One federation: artifacts on one wire, the round loop, a client's step, defenses and malicious clients."""
