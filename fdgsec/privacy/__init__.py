"""Differential privacy: mechanisms, accounting, DP-SGD, and empirical lower bounds on epsilon."""
