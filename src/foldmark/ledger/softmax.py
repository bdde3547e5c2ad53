"""What each softmax does to the error in its scores: amplify it or bury it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray

__all__ = ["SoftmaxGain", "SoftmaxGains", "softmax_nodes"]


@dataclass(frozen=True)
class SoftmaxGain:
    """The gain of one softmax, per head.

    Attributes:
        name: the node's name.
        scores: relative error of the scores, per head (one entry without heads).
        probabilities: relative error of the probabilities, per head.
        layer: module path of the attention, "" when the graph does not let us recover it.
    """

    name: str
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    layer: str = ""

    @property
    def gains(self) -> tuple[float, ...]:
        """probabilities / scores per head: above 1 the softmax amplifies, below it buries."""
        pairs = zip(self.probabilities, self.scores, strict=True)
        return tuple(out / into if into > 0 else 0.0 for out, into in pairs)

    @property
    def gain(self) -> float:
        """The gain over all heads."""
        into, out = np.square(self.scores).sum(), np.square(self.probabilities).sum()
        return float(np.sqrt(out / into)) if into > 0 else 0.0


def softmax_nodes(model: onnx.ModelProto) -> tuple[onnx.NodeProto, ...]:
    """Return the graph's Softmax nodes over the last axis, in order."""
    return tuple(n for n in model.graph.node if n.op_type == "Softmax" and _over_last(n))


@dataclass
class SoftmaxGains:
    """Gathers the errors of one softmax over batches.

    Errors are weighted by the float probabilities p, so that masked places do not count and a
    shift of all scores, which a softmax does not see, is no error:

        scores          sqrt( sum p (d - sum p d)^2 / sum p (s - sum p s)^2 ),  d = s' - s
        probabilities   sqrt( sum (p' - p)^2 / sum p^2 )
    """

    name: str
    layer: str = ""
    _sums: list[NDArray[np.float64]] = field(default_factory=list)

    def add(
        self,
        scores: NDArray[np.floating],
        probabilities: NDArray[np.floating],
        scores_after: NDArray[np.floating],
        probabilities_after: NDArray[np.floating],
    ) -> None:
        """Add one batch: the float run's scores and probabilities, then the quantized run's."""
        p, s = probabilities.astype(np.float64), scores.astype(np.float64)
        error = scores_after.astype(np.float64) - s
        moved = probabilities_after.astype(np.float64) - p
        sums = [
            (p * (error - (p * error).sum(-1, keepdims=True)) ** 2).sum(-1),
            (p * (s - (p * s).sum(-1, keepdims=True)) ** 2).sum(-1),
            (moved**2).sum(-1),
            (p**2).sum(-1),
        ]
        self._sums.append(np.stack([_per_head(each) for each in sums]))

    def gain(self) -> SoftmaxGain:
        """Return what was gathered."""
        error, signal, moved, power = np.sum(self._sums, axis=0)
        tiny = 1e-300
        return SoftmaxGain(
            self.name,
            tuple(float(x) for x in np.sqrt(error / np.maximum(signal, tiny))),
            tuple(float(x) for x in np.sqrt(moved / np.maximum(power, tiny))),
            self.layer,
        )


def _per_head(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over all but the head axis, which is the second of (batch, head, token)."""
    if rows.ndim == 3:
        summed: NDArray[np.float64] = rows.sum((0, 2))
        return summed
    return rows.sum().reshape(1)


def _over_last(node: onnx.NodeProto) -> bool:
    axes: Iterable[int] = (a.i for a in node.attribute if a.name == "axis")
    return next(iter(axes), -1) == -1
