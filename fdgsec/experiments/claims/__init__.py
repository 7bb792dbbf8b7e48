"""`fdgsec claims`: the papers' privacy claims, each with a measured verdict."""
