"""Climbing from cheap to careful quantization until a target holds."""
