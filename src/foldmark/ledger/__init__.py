"""The account of lost accuracy: entries that sum to what was measured."""
