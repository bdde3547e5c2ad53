"""Numbers on the command line that are numbers."""

import math

import click

__all__ = ["NUMBER"]


class _Number(click.ParamType):  # type: ignore[type-arg]
    """A finite number: click takes nan for one, with which every demand would hold."""

    name = "number"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Return the number, or say that it is none."""
        try:
            found = float(str(value))
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", parameter, context)
        return found


NUMBER = _Number()
