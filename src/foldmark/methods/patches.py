"""What a convolution reads, as rows of a matrix: the second moment of its patches, streamed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import NoData, NonFiniteValue

__all__ = ["PatchSums", "Window", "patches"]

_POSITIONS = 64  # of one sample; more of one image say little that is new


@dataclass(frozen=True)
class Window:
    """The window of a convolution in two dimensions.

    Attributes:
        kernel, strides, dilations: (rows, columns).
        pads: (top, left, bottom, right).
        groups: channels are cut into so many parts that don't mix.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    groups: int


def patches(X: NDArray[np.floating], window: Window) -> NDArray[np.floating]:
    """Return what each output position reads.

    X   (samples, channels, height, width)
    ->  (groups, positions, channels / groups * kernel)  in the order of the weight's own axes;
        of a sample with more than 64 positions, 64 spread over it
    """
    top, left, bottom, right = window.pads
    padded = np.pad(X, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [d * (k - 1) + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    views = views[:, :, :: window.strides[0], :: window.strides[1]]
    views = views[..., :: window.dilations[0], :: window.dilations[1]]
    samples, channels, high, wide = views.shape[:4]
    places = np.linspace(0, high * wide - 1, min(high * wide, _POSITIONS)).astype(np.int64)
    chosen = views[:, :, places // wide, places % wide]  # (samples, channels, places, kh, kw)
    part = channels // window.groups
    grouped = chosen.reshape(samples, window.groups, part, len(places), *window.kernel)
    rows = grouped.transpose(1, 0, 3, 2, 4, 5)
    return np.ascontiguousarray(rows).reshape(window.groups, samples * len(places), -1)


class PatchSums:
    """The second moment of a convolution's patches, a batch at a time."""

    def __init__(self, name: str, window: Window) -> None:
        self._name, self._window = name, window
        self._square: NDArray[np.float64] | None = None
        self._tokens = 0

    def add(self, X: NDArray[np.floating]) -> None:
        """Take in a batch of inputs (samples, channels, height, width).

        Raises NonFiniteValue naming the input.
        """
        rows = patches(X.astype(np.float32, copy=False), self._window)
        if not np.isfinite(rows).all():
            raise NonFiniteValue("an input is not finite", where=f"tensor {self._name!r}")
        moment = (rows.swapaxes(1, 2) @ rows).astype(np.float64)
        self._square = moment if self._square is None else self._square + moment
        self._tokens += rows.shape[1]

    def finish(self) -> NDArray[np.float64]:
        """Return H = 2 X^T X / positions, (groups, n, n). Raises NoData when nothing was seen."""
        if self._square is None or not self._tokens:
            raise NoData("nothing was seen of this input", where=f"tensor {self._name!r}")
        return 2 * self._square / self._tokens
