"""Conv and ConvTranspose, each the other's gradient; grouped, strided, dilated, padded."""

from dataclasses import dataclass
from itertools import product
from math import prod

from foldmark.graphs.derivative.tape import Gradients, Step, Tape

__all__ = ["RULES", "window_pads"]


@dataclass(frozen=True)
class _Geometry:
    """Spatial attributes of a convolution, one entry per spatial axis (pads: begins, ends)."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    group: int

    @property
    def reach(self) -> list[int]:
        """Elements from the first to the last tap of the dilated kernel."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def window_pads(at: Step, kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    """Return the pads of a sliding window over the first input, `auto_pad` resolved."""
    spatial = len(kernel)
    mode = at.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * 2 * spatial
    if mode == "NOTSET":
        return at.integers("pads") or [0] * 2 * spatial
    begins, ends = [], []
    for n, k, s, d in zip(at.shape()[2:], kernel, strides, dilations, strict=True):
        out = -(-n // s)
        total = max((out - 1) * s + (k - 1) * d + 1 - n, 0)
        less = total // 2
        begins.append(less if mode == "SAME_UPPER" else total - less)
        ends.append(total - begins[-1])
    return begins + ends


def _conv_geometry(at: Step) -> _Geometry:
    kernel = list(at.shape(1)[2:])
    ones = [1] * len(kernel)
    strides = at.integers("strides") or ones
    dilations = at.integers("dilations") or ones
    pads = window_pads(at, kernel, strides, dilations)
    return _Geometry(kernel, strides, dilations, pads, at.integer("group", 1))


def _conv_transpose_geometry(at: Step) -> _Geometry:
    """The pads follow from the shapes, whether given, automatic, or by `output_shape`."""
    kernel = list(at.shape(1)[2:])
    spatial = len(kernel)
    ones = [1] * spatial
    strides = at.integers("strides") or ones
    dilations = at.integers("dilations") or ones
    extra = at.integers("output_padding") or [0] * spatial
    mode = at.text("auto_pad", "NOTSET")
    pads = at.integers("pads")
    if pads is None or mode != "NOTSET" or at.integers("output_shape"):
        begins, ends = [], []
        for i in range(spatial):
            reach = (kernel[i] - 1) * dilations[i] + 1
            full = strides[i] * (at.shape()[2 + i] - 1) + extra[i] + reach
            total = max(full - at.output_shape()[2 + i], 0)
            less = total // 2
            begins.append(less if mode == "SAME_UPPER" else total - less)
            ends.append(total - begins[-1])
        pads = begins + ends
    return _Geometry(kernel, strides, dilations, pads, at.integer("group", 1))


@dataclass(frozen=True)
class _Image:
    """A value of shape (batch, channels, ...)."""

    name: str
    shape: tuple[int, ...]


# A weight of so many taps is better taken as one convolution: each tap is a node or four.
_MOST_TAPS = 25
_MOST_TAPS_OF_ONE = 9
# Products of fewer channels are slower than the convolution.
_LEAST_CHANNELS = 8


def _weight_gradient(tape: Tape, image: _Image, response: _Image, geometry: _Geometry) -> str:
    """Append the gradient of W in response = Conv(image, W).

    dW[m, c, k] = sum over n, o of response[n, m, o] image[n, c, s o + d k - p]
    """
    taps = prod(geometry.kernel)
    inner, outer = image.shape[1] // geometry.group, response.shape[1] // geometry.group
    if inner == outer == 1:
        few = taps <= _MOST_TAPS_OF_ONE
    else:
        few = taps == 1 or (taps <= _MOST_TAPS and inner >= _LEAST_CHANNELS)
    if few:
        return _weight_gradient_by_taps(tape, image, response, geometry)
    return _weight_gradient_as_convolution(tape, image, response, geometry)


def _weight_gradient_by_taps(
    tape: Tape, image: _Image, response: _Image, geometry: _Geometry
) -> str:
    """Append dW tap by tap: the response times the part of the image that the tap saw.

    As a convolution, whose windows are as large as the response, it took ten times as long.
    """
    batch, groups, spread = image.shape[0], geometry.group, response.shape[2:]
    inner, outer = image.shape[1] // groups, response.shape[1] // groups
    count, rank = prod(spread), len(spread)
    padded = image.name
    if any(geometry.pads):
        begins, ends = geometry.pads[:rank], geometry.pads[rank:]
        padded = tape.emit("Pad", padded, tape.integers([0, 0, *begins, 0, 0, *ends]))
    is_whole = not any(geometry.pads) and set(geometry.strides) == {1}
    # Samples are summed after the products, or within them where the products are the larger.
    within = batch > 1 and inner * outer > (inner + outer) * count

    def rows(value: str, channels: int) -> str:
        if not within:
            return tape.reshape(value, (batch * groups, channels, count))
        split = tape.reshape(value, (batch, groups, channels, count))
        return tape.reshape(tape.transpose(split, [1, 2, 0, 3]), (groups, channels, batch * count))

    depthwise = inner == outer == 1
    g = response.name if depthwise else rows(response.name, outer)
    parts = []
    for tap in product(*map(range, geometry.kernel)):
        first = [k * d for k, d in zip(tap, geometry.dilations, strict=True)]
        last = [
            f + (o - 1) * s + 1 for f, o, s in zip(first, spread, geometry.strides, strict=True)
        ]
        seen = padded
        if not (is_whole and prod(geometry.kernel) == 1):
            limits = tape.integers(first), tape.integers(last)
            axes = tape.integers(range(2, 2 + rank))
            seen = tape.emit("Slice", padded, *limits, axes, tape.integers(geometry.strides))
        if depthwise:
            space = [0, *range(2, 2 + rank)]
            parts.append(tape.reduce_sum(tape.multiply(g, seen), space, keep=1))
            continue
        both = tape.emit("MatMul", g, tape.transpose(rows(seen, inner), [0, 2, 1]))
        if not within and batch > 1:
            both = tape.reduce_sum(tape.reshape(both, (batch, groups, outer, inner)), [0])
        parts.append(tape.reshape(both, (groups * outer, inner, 1)))
    whole = tape.emit("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]
    return tape.reshape(whole, (groups * outer, inner, *geometry.kernel))


def _weight_gradient_as_convolution(
    tape: Tape, image: _Image, response: _Image, geometry: _Geometry
) -> str:
    """Append dW as a convolution.

    Its batch axis is the channels, its channels are the samples, and its strides and dilations
    have changed places.
    """
    groups, batch = geometry.group, image.shape[0]
    inner, outer = image.shape[1] // groups, response.shape[1] // groups
    space, spread = image.shape[2:], response.shape[2:]
    axes = list(range(3, 3 + len(space)))
    if groups == 1:
        x = tape.transpose(image.name, [1, 0, *(a - 1 for a in axes)])
        g = tape.transpose(response.name, [1, 0, *(a - 1 for a in axes)])
    else:
        x = tape.reshape(image.name, (batch, groups, inner, *space))
        x = tape.reshape(tape.transpose(x, [2, 1, 0, *axes]), (inner, groups * batch, *space))
        g = tape.reshape(response.name, (batch, groups, outer, *spread))
        g = tape.reshape(tape.transpose(g, [1, 2, 0, *axes]), (groups * outer, batch, *spread))
    taps = tape.emit(
        "Conv",
        x,
        g,
        strides=geometry.dilations,
        dilations=geometry.strides,
        pads=geometry.pads,
        group=groups,
    )
    # The stride may leave a rest of the image that no tap reads but this window would.
    count = len(space)
    size = [
        (n + geometry.pads[i] + geometry.pads[i + count] - (o - 1) * s - 1) // d + 1
        for i, (n, o, s, d) in enumerate(
            zip(space, spread, geometry.strides, geometry.dilations, strict=True)
        )
    ]
    if size != geometry.kernel:
        taps = tape.emit(
            "Slice",
            taps,
            tape.integers([0] * count),
            tape.integers(geometry.kernel),
            tape.integers([a - 1 for a in axes]),
        )
    return tape.transpose(taps, [1, 0, *(a - 1 for a in axes)])


def _sum_channels(at: Step) -> str:
    rank = len(at.output_shape())
    return at.tape.reduce_sum(at.gradient, [0, *range(2, rank)])


def _conv(at: Step) -> Gradients:
    """Y = Conv(X, W) + B: dX = ConvTranspose(G, W); dW as above; dB = sum of G per channel."""
    geometry, tape, gradients = _conv_geometry(at), at.tape, {}
    spatial = len(geometry.kernel)
    if at.wants(0):
        rest = [
            n - ((o - 1) * s + r - geometry.pads[i] - geometry.pads[i + spatial])
            for i, (n, o, s, r) in enumerate(
                zip(
                    at.shape()[2:],
                    at.output_shape()[2:],
                    geometry.strides,
                    geometry.reach,
                    strict=True,
                )
            )
        ]
        gradients[0] = tape.emit(
            "ConvTranspose",
            at.gradient,
            at.input(1),
            strides=geometry.strides,
            dilations=geometry.dilations,
            pads=geometry.pads,
            output_padding=rest,
            group=geometry.group,
        )
    if at.wants(1):
        gradients[1] = _weight_gradient(
            tape,
            _Image(at.input(0), at.shape(0)),
            _Image(at.gradient, at.output_shape()),
            geometry,
        )
    if at.wants(2):
        gradients[2] = _sum_channels(at)
    return gradients


def _conv_transpose(at: Step) -> Gradients:
    """Y = ConvTranspose(X, W) + B: dX = Conv(G, W); dW as Conv's with the two ends exchanged."""
    geometry, tape, gradients = _conv_transpose_geometry(at), at.tape, {}
    if at.wants(0):
        gradients[0] = tape.emit(
            "Conv",
            at.gradient,
            at.input(1),
            strides=geometry.strides,
            dilations=geometry.dilations,
            pads=geometry.pads,
            group=geometry.group,
        )
    if at.wants(1):
        gradients[1] = _weight_gradient(
            tape,
            _Image(at.gradient, at.output_shape()),
            _Image(at.input(0), at.shape(0)),
            geometry,
        )
    if at.wants(2):
        gradients[2] = _sum_channels(at)
    return gradients


RULES = {"Conv": _conv, "ConvTranspose": _conv_transpose}
