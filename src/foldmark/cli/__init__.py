"""One thin module a command: strings become types here and nowhere else."""
