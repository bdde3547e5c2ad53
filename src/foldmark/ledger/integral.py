"""A path integral over one batch, as nodes are added to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foldmark.ledger.recording import Float32
from foldmark.runtimes.onnxruntime import Array

__all__ = ["Integral"]


@dataclass(frozen=True)
class Integral:
    """A path integral over one batch.

    Attributes:
        nodes: number of nodes.
        gradients: site name -> average along the path of d(metric) / d(what is injected), of
            the site's shape. A site that the metric does not depend on is absent.
        entries: site name -> < gradient, delta >, summed in double precision.
        sums: the arrays that further nodes are added to.
        parts: site name -> its entry sample by sample; empty where that was not asked for.
    """

    nodes: int
    gradients: Mapping[str, Float32]
    entries: Mapping[str, float]
    sums: Mapping[str, Array] = field(default_factory=dict, repr=False)
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The sum of the entries: M(1) - M(0) but for what the nodes leave."""
        return sum(self.entries.values())
