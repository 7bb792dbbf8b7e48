"""Membership inference on models: LiRA, RMIA and baselines."""
