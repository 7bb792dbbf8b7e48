"""The threat model: adversaries, attacks and their questions, answers and who judges them."""
