"""One attack family, one file."""
