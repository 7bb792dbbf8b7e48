"""Neural networks: classifiers and other networks, image styles, and the training loop."""
