"""What pools of per-image statistics expose."""
