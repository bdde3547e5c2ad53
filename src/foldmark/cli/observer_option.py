"""The options that choose how ranges are taken."""

from collections.abc import Callable
from typing import Any

import click

from foldmark.calibrate.observers import Method, Observer, Symmetry

__all__ = ["observer_from", "observer_options"]

_METHODS = [method.value for method in Method]


def observer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --observer, --symmetric, --percentile and --constant to a command."""
    for option in (
        click.option(
            "--constant",
            type=float,
            default=0.01,
            show_default=True,
            help="Of the moving average: old + constant (new - old).",
        ),
        click.option(
            "--percentile",
            type=float,
            default=99.999,
            show_default=True,
            help="Share of the values kept by --observer percentile, in percent.",
        ),
        click.option("--symmetric", is_flag=True, help="Mirror the ranges: low = -high."),
        click.option(
            "--observer",
            "method",
            type=click.Choice(_METHODS),
            default="min-max",
            show_default=True,
            help="How ranges of activations are chosen.",
        ),
    ):
        command = option(command)
    return command


def observer_from(
    method: str, symmetric: bool, percentile: float, constant: float, bits: int = 8
) -> Observer:
    """Return the observer that the options name."""
    symmetry = Symmetry.SYMMETRIC if symmetric else Symmetry.AFFINE
    return Observer(Method(method), symmetry, bits, percentile, constant)
