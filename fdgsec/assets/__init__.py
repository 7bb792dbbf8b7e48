"""Files that travel in the wheel: the bundled encoder and the report template."""
