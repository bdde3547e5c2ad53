"""A derivative that is ready to run, and the names of what goes in and comes out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from foldmark.graphs.derivative.kink import Kink
from foldmark.graphs.derivative.samples import Apart
from foldmark.graphs.injection import MetricPiece
from foldmark.runtimes.onnxruntime import Session

__all__ = ["SHARE", "Built", "error_input"]

SHARE = "share of the integral"
"""The input that scales a node's gradients by the node's share of the integral."""


@dataclass(frozen=True)
class Built:
    """A derivative ready to run on batches of given shapes.

    Attributes:
        metric: the metric that it differentiates.
        shapes: what a batch must have in common with the one it was built for.
        session: adds gradients to what it is given.
        gradients: site name -> name of its gradient.
        names: of the gradients, each once.
        dtype: of the metric.
        kinks: functions whose means it takes.
        apart: what it tells apart by samples.
        parts: input that takes a site's error -> name of the site's entry sample by sample.
    """

    metric: MetricPiece
    shapes: Mapping[str, object]
    session: Session
    gradients: Mapping[str, str]
    names: tuple[str, ...]
    dtype: np.dtype[np.generic]
    kinks: tuple[Kink, ...]
    apart: Apart | None
    parts: Mapping[str, str]

    @property
    def errors(self) -> dict[str, str]:
        """Site name -> the input that takes its error."""
        return {
            site: error_input(site) for site in self.gradients if error_input(site) in self.parts
        }


def error_input(site: str) -> str:
    """Return the name of the input that takes a stored site's error."""
    return f"error of {site}"
