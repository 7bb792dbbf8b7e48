"""`fdgsec attack`: run a target, run every applicable attack, report."""
