"""Statistics of tensors: intervals, ROC curves, similarity of images, distances between feature distributions."""
