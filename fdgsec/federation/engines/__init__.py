"""Ways to run one federation: in this process, or across machines."""
