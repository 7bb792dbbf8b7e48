"""Style inversion: images from styles, by a trained generator or by optimization."""
