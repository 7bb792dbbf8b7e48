"""`fdgsec audit`: empirical lower bounds on epsilon."""
