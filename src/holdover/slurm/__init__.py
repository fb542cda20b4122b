"""Jobs on a SLURM cluster: submit, keep through time limits, follow, list."""
