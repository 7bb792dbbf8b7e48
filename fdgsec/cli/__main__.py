"""`python -m fdgsec.cli`."""

import sys

from fdgsec.cli import main

sys.exit(main())
