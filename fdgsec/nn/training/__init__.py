"""The one training loop, and what goes into it: batches, plans, losses, augmentation, precision."""
