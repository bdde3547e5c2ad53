"""Properties are tried on repeated draws; `--hypothesis-profile=thorough` hunts with new ones.

Draws repeat while a property's source, Hypothesis and Python stay the same, and with them the
constants that Hypothesis finds in the project's modules: it puts numbers and strings that stand in
imported files outside site-packages among its draws, and no setting of it leaves them out. So an
editable installation draws otherwise than an installed package, a property run alone otherwise than
after others that imported more, and an edit anywhere can bring a draw that was never tried.
"""

from hypothesis import HealthCheck, settings
from tests.properties import HUNT

SLOW = [HealthCheck.too_slow]  # the oracle is slow on purpose

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=SLOW)
settings.register_profile(
    HUNT, max_examples=10_000, deadline=None, suppress_health_check=SLOW, print_blob=True
)
settings.load_profile("repeatable")
