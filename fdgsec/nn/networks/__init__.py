"""Networks that several papers or attacks share."""
