"""The Flower engine: the same federation across processes and machines; an optional extra, imported by nothing else."""
