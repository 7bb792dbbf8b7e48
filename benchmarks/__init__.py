"""Speed, memory and quality measurements: scripts, each of its own, and `python -m benchmarks` for speed and memory."""
