"""The catalogue against the tools themselves, run in the same test."""
