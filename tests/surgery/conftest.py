"""What is written here is run by sums that do not depend on the processor."""

from tests.exact_sums import exact_sums

__all__ = ["exact_sums"]
