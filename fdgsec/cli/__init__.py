"""The command line: one module per verb, no logic; results to stdout, everything else to stderr."""

from fdgsec.cli.app import main as main
