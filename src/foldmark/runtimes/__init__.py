"""Run a model, tap it, time it, and say which kernels ran."""
