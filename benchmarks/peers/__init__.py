"""fdgsec beside the authors' own code, at one thread: `python -m benchmarks.peers`."""
