"""Real and trained models for the tests: built once a session, the same every time."""
