"""Faults planted on purpose, each with the site and the element that are to blame."""
