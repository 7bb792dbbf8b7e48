"""The federation: artifacts and messages, the round loop, a client's step, defenses and malicious clients."""
