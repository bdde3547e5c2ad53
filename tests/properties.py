"""How many draws a property is tried on: its own number, or as many as a hunt asks."""

from hypothesis import settings

HUNT = "thorough"


def examples(number: int) -> settings:
    """Return settings of a property for which `number` draws are enough every day."""
    if settings.get_current_profile_name() == HUNT:
        return settings(max_examples=settings.default.max_examples)
    return settings(max_examples=number)
