"""`python -m fdgsec`: the command line."""

from fdgsec.cli import main

raise SystemExit(main())
