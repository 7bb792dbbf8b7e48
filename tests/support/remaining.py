"""Which processes still run that began with a word of the test's in their environment."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

WORD = "FDGSEC_TEST_WORD"


def worded() -> tuple[str, Mapping[str, str]]:
    """A new word, and an environment that carries it; ray's workers would write over it when they rename themselves."""
    word = secrets.token_hex(8)
    return word, {**os.environ, WORD: word, "SPT_NOENV": "1"}


def remaining(word: str) -> list[str]:
    """The command lines of those that carry the word and have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{WORD}={word}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return found
