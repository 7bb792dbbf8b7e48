"""The training loop and its parts: batches, plans, losses, augmentation, precision, adaptation."""
