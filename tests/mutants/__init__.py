"""Rules are values, so mutants are their neighbours: each is told apart, or explained."""
