"""Jobs on a SLURM cluster: submit, continue after time limits, follow, list."""
