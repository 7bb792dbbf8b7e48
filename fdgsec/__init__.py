"""fdgsec: privacy and security analysis of federated domain generalization."""

__version__ = "0.1.0"
