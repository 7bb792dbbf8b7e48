"""`fdgsec bench`: the papers' accuracy tables and ablations."""
