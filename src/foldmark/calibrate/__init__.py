"""Ranges of tensors from data, one batch at a time."""
