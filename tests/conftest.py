"""Properties are tried on the same draws everywhere; `--hypothesis-profile=default` draws anew."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
