"""Align two artefacts, infer the rule of each, and price the difference."""
