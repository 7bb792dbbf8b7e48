"""Answers against the truth: from each type of answer to measurements with chance and interval."""
