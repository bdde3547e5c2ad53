"""What codes and scales alone show of the rule that made them, the float weights unseen."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from foldmark.compare.extremes import block_extremes, inside, spans_walk
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Layout, Values

__all__ = ["Traces", "find_traces", "has_ends", "merged"]

# Blocks of a tensor that are looked at; rules leave the same traces in all of them.
_SAMPLE = 1 << 19
# So large a part of the blocks must show a trace; a block of zeros shows none.
_ALMOST_ALL = 0.999
# What is said of every block, and of the only one.
_OF_ONE = (
    ("every block reaches", "its codes reach"),
    ("every block spans", "its codes span"),
    ("no block reaches", "its codes do not reach"),
    ("no block holds more", "it holds no more"),
    ("each block's own", "its own"),
    ("every scale is", "its scale is"),
)
_WIDE_OR_TINY = ("int16", "uint16", "int32", "uint32", "ternary")


@dataclass(frozen=True, slots=True)
class Traces:
    """Statements about a tensor, each true of its sample.

    Attributes:
        range_rule: how the scale follows from the block's range, "" when nothing shows.
        scale_grid: which numbers the scales are, "" when nothing shows.
        blocks: how many blocks were looked at.
    """

    range_rule: str
    scale_grid: str
    blocks: int

    def sentence(self) -> str:
        """Join the statements."""
        said = "; ".join(text for text in (self.range_rule, self.scale_grid) if text)
        if self.blocks == 1:
            for many, one in _OF_ONE:
                said = said.replace(many, one)
        return said


def find_traces(tensor: StoredTensor, ends: tuple[Array, Array] | None = None) -> Traces:
    """Look at the first blocks of a quantized tensor, or at all where one reaches over them all.

    Args:
        tensor: where to look.
        ends: lowest and highest code of each block, where the caller has seen them already.
    """
    layout = tensor.layout
    if layout.block is None or not tensor.elements:
        return Traces("", "", 0)
    values = _sample(tensor)
    scale = values.scale if values.scale is not None else np.ones(1, np.float32)
    grid = _scale_grid(scale, layout) if values.scale is not None else ""
    if not has_ends(layout, values):
        return Traces("", grid, int(scale.size))
    if ends is not None and tensor.records is None:
        low, high = ends
    elif spans_walk(tensor) and tensor.records is None:
        low, high = _ends_of_all(tensor)
    else:
        low, high = block_extremes(
            values.codes, inside(values.block or layout.block, values.codes.shape)
        )
    low, high = low.astype(np.int16), high.astype(np.int16)
    return Traces(_range_rule(low, high, values, layout), grid, int(low.size))


def has_ends(layout: Layout, values: Values) -> bool:
    """Say whether a block's lowest and highest code tell of its range."""
    plain = values.group is None and values.codebook is None
    return plain and values.codes.dtype.kind in "iu" and layout.number_format not in _WIDE_OR_TINY


def merged(one: tuple[Array, Array] | None, other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Join the ends that two pieces of the same blocks have."""
    if one is None:
        return other
    return np.minimum(one[0], other[0]), np.maximum(one[1], other[1])


def _ends_of_all(tensor: StoredTensor) -> tuple[Array, Array]:
    ends: tuple[Array, Array] | None = None
    for _, values in tensor.pieces(_SAMPLE):
        codes = values.codes
        ends = merged(ends, block_extremes(codes, inside(tensor.layout.block or (), codes.shape)))
    assert ends is not None
    return ends


def _sample(tensor: StoredTensor) -> Values:
    records = tensor.records
    if records is not None:
        return records.decode(records.read(0, min(records.count, _SAMPLE // records.elements)))
    return next(iter(tensor.pieces(_SAMPLE)))[1]


def _range_rule(low: Array, high: Array, values: Values, layout: Layout) -> str:
    bits = int("".join(c for c in layout.number_format if c.isdigit()))
    bottom = 0 if layout.number_format[0] == "u" else -(1 << (bits - 1))
    top = bottom + (1 << bits) - 1
    alive = np.broadcast_to(_alive(values), low.shape) & (low != high)
    low, high = low[alive], high[alive]
    if not low.size:
        return "no block holds more than one value"
    middle = bottom + (1 << (bits - 1))
    symmetric = layout.zero_point in ("none", f"at {middle}") and layout.zero_point != "real"
    stored = values.zero_point is not None and values.zero_point.size > 0
    if stored and bool((np.asarray(values.zero_point) == middle).all()):
        symmetric = True
    if (
        symmetric
        and values.offset is None
        and (bottom < 0 or layout.zero_point != "none" or stored)
    ):
        return _symmetric(low - middle, high - middle, middle - bottom)
    return _affine(low, high, bottom, top)


def _alive(values: Values) -> Array:
    scale = values.scale if values.scale is not None else np.ones((1,), np.float32)
    return np.isfinite(scale) & (scale != 0)


def _symmetric(low: Array, high: Array, end: int) -> str:
    """Tell absmax rules apart by the end codes that each block's largest element reaches."""
    narrow = end - 1
    at_end, at_narrow = low == -end, (high == narrow) | (low == -narrow)
    if at_end.mean() >= _ALMOST_ALL:
        return f"every block reaches {-end}: the signed extreme over {-end}"
    if not at_end.any() and at_narrow.mean() >= _ALMOST_ALL:
        return f"every block reaches {narrow} or {-narrow}, none {-end}: absmax / {narrow}"
    if at_end.any() and (at_end | at_narrow).mean() >= _ALMOST_ALL:
        lowest_short = ((low == -narrow) & (high < narrow)).any()
        other = "" if lowest_short else f" or / {end}"
        return f"every block reaches {-end} or {narrow}: absmax / {end - 0.5}{other}"
    reach = (at_end | at_narrow).mean()
    used = int(np.maximum(-low, high).max())
    some = f"{reach:.0%} of blocks reach" if reach else "no block reaches"
    return (
        f"{some} an end code, the largest used is {used} of {end}: the scale is not each block's "
        "own absmax over its codes"
    )


def _affine(low: Array, high: Array, bottom: int, top: int) -> str:
    both = ((low <= bottom) & (high >= top)).mean()
    one = ((low <= bottom) | (high >= top)).mean()
    if both >= _ALMOST_ALL:
        return f"every block reaches {bottom} and {top}: (max - min) / {top - bottom}"
    near = ((low <= bottom + 1) & (high >= top - 1)).mean()
    if near >= _ALMOST_ALL:
        return f"every block spans {bottom}..{top} within one code: (max - min) / {top - bottom}"
    if one >= _ALMOST_ALL:
        return f"every block reaches {bottom} or {top}: a range that contains zero, or was clipped"
    some = f"{both:.0%} of blocks reach" if both else "no block reaches"
    return f"{some} both ends: the scale is not each block's own range"


def _scale_grid(scale: Array, layout: Layout) -> str:
    scale = scale.reshape(-1)[:_SAMPLE]
    finite = scale[np.isfinite(scale) & (scale != 0)].astype(np.float32)
    if not finite.size:
        return "no scale is a usable number"
    mantissa, _ = np.frexp(np.abs(finite))
    if (mantissa == 0.5).all() and layout.scale_format != "float8_e8m0fnu":
        return "every scale is a power of two: a fixed-point grid"
    if layout.scale_format not in ("float32", "float64"):
        return ""
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        if (finite.astype(dtype).astype(np.float32) == finite).all() and finite.size > 1:
            return f"every scale is a {name} number"
    for name, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        for steps in (127.0, 127.5, 128.0, 7.0, 7.5, 8.0):
            extreme = (finite * np.float32(steps)).astype(dtype).astype(np.float32)
            if (extreme / np.float32(steps) == finite).all() and finite.size > 7:
                return f"every scale is a {name} number over {steps:g}: weights were {name}"
    return ""
