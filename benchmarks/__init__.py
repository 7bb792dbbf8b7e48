"""Speed, memory and quality benchmarks: standalone scripts, and `python -m benchmarks` for speed and memory."""
