"""One defense mechanism, one file."""
