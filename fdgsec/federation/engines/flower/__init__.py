"""The same federation across processes and machines, by Flower; an optional extra, imported by nothing else."""
