"""Other ways to treat a site: the candidates that the what-if prices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from foldmark import rules
from foldmark.exact.tools.entry import Operator
from foldmark.graphs.emitter import Emitter
from foldmark.graphs.sites import Encoding, Site
from foldmark.kernels.affine import fake_quantize
from foldmark.ledger.facts import SiteFacts
from foldmark.ledger.grid import code_limits, spread
from foldmark.ledger.models import is_constant

__all__ = ["Treatment", "candidates", "refolded", "smoothed"]

_OPERATORS = {
    "int4": "ONNXRUNTIME_QUANTIZELINEAR_INT4",
    "uint4": "ONNXRUNTIME_QUANTIZELINEAR_UINT4",
    "int8": "ONNXRUNTIME_QUANTIZELINEAR_INT8",
    "uint8": "ONNXRUNTIME_QUANTIZELINEAR_UINT8",
    "int16": "ONNXRUNTIME_QUANTIZELINEAR_INT16",
    "uint16": "ONNXRUNTIME_QUANTIZELINEAR_UINT16",
}
_BLOCK = 32
_PERCENTILE = 99.9
_SEARCHED = np.linspace(0.2, 1.0, 33)
# Values looked at when a clipping range is searched.
_SEARCH_SIZE = 200_000


@dataclass(frozen=True)
class Treatment:
    """Another way to represent a site's tensor.

    Attributes:
        change: what is done, in words.
        encoding: the new number format and grid; None leaves the tensor in float.
        smoothing: factor per channel that the tensor is divided by before and multiplied with
            after, along `axis`; None for none.
        axis: the axis of `smoothing`.
        bits: how many bits a value takes: what the treatment costs.
    """

    change: str
    encoding: Encoding | None
    smoothing: NDArray[np.float32] | None = None
    axis: int = 0
    bits: int = 32

    def apply(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the tensor as this treatment leaves it."""
        if self.encoding is None:
            return tensor
        factor = self._factor(tensor.ndim)
        if factor is None:
            return refolded(tensor, self.encoding)
        return refolded(tensor / factor, self.encoding) * factor

    def emit(self, emitter: Emitter, value: str, shape: Sequence[int]) -> str:
        """Append what `apply` does to an activation of this shape; return the result's name."""
        if self.encoding is None:
            return value
        factor = self._factor(len(shape))
        scale, zero = _parameters(self.encoding, tuple(shape))
        low, high = code_limits(self.encoding.number_format)
        if factor is not None:
            value = emitter.divide(value, emitter.constant(factor))
        steps = emitter.emit("Round", emitter.divide(value, emitter.constant(scale)))
        codes = emitter.emit(
            "Clip",
            emitter.add(steps, emitter.constant(zero)),
            emitter.constant(low, np.float32),
            emitter.constant(high, np.float32),
        )
        whole = emitter.subtract(codes, emitter.constant(zero))
        if factor is not None:
            whole = emitter.multiply(whole, emitter.constant(factor))
        return emitter.multiply(whole, emitter.constant(scale))

    def _factor(self, rank: int) -> NDArray[np.float32] | None:
        if self.smoothing is None:
            return None
        shape = [1] * rank
        shape[self.axis] = self.smoothing.size
        return self.smoothing.reshape(shape)


def refolded(tensor: NDArray[np.float32], encoding: Encoding) -> NDArray[np.float32]:
    """Return the tensor quantized and dequantized by ONNX's QuantizeLinear on a fixed grid."""
    operator = getattr(rules, _OPERATORS[encoding.number_format])
    assert isinstance(operator, Operator)
    scale, zero = _parameters(encoding, tensor.shape)
    if scale.ndim == 0:
        block: tuple[int, ...] = tensor.shape
        scale, zero = scale.reshape([1] * tensor.ndim), zero.reshape([1] * tensor.ndim)
    else:
        block = tuple(
            1 if part > 1 else whole for part, whole in zip(scale.shape, tensor.shape, strict=True)
        )
    folded: NDArray[np.float32] = fake_quantize(
        np.ascontiguousarray(tensor), scale, zero.astype(np.int32), operator.affine, block
    )
    return folded


def candidates(site: Site, facts: SiteFacts, values: NDArray[np.float32]) -> tuple[Treatment, ...]:
    """Return the treatments worth pricing for a site.

    facts    what was seen of its tensor
    values   the weight, or the activation on one batch: for the search of a clipping range
    """
    found = [Treatment("leave in float", None)]
    form = site.encoding.number_format
    if form not in _OPERATORS or values.ndim == 0:
        return tuple(found)
    ranges = _Ranges(facts.channel_lows, facts.channel_highs)
    if "16" not in form:
        found.append(_on_range("16 bit", f"{form.rstrip('0123456789')}16", ranges.whole()))
    axis = facts.setter.axis if facts.setter is not None else None
    if site.encoding.axis is None and axis is not None and ranges.lows.size > 1:
        found.append(
            _on_range(
                f"per channel ({ranges.lows.size} scales)", form, ranges, axis=axis, symmetric=True
            )
        )
    if is_constant(site) and values.ndim == 2 and values.shape[0] % _BLOCK == 0:
        found.append(_per_block(form, values))
    found.append(_other_symmetry(site, form, ranges.whole()))
    found.extend(_clipped(form, ranges.whole(), values))
    if facts.setter is not None and facts.setter.rest_below:
        found.append(_without_the_far(form, ranges.whole(), facts.setter.rest_below))
    return tuple(found)


@dataclass(frozen=True)
class _Ranges:
    """Smallest and largest value, of the whole or per channel."""

    lows: NDArray[np.float64]
    highs: NDArray[np.float64]

    def whole(self) -> "_Ranges":
        return _Ranges(np.asarray(self.lows.min()), np.asarray(self.highs.max()))

    def times(self, factor: float) -> "_Ranges":
        return _Ranges(self.lows * factor, self.highs * factor)


def _is_symmetric(site: Site) -> bool:
    zero = site.encoding.zero_point
    low, high = code_limits(site.encoding.number_format)
    return zero is None or bool(np.all(zero.astype(np.int64) == (low + high + 1) // 2))


def _on_range(
    change: str, form: str, ranges: _Ranges, *, axis: int | None = None, symmetric: bool = False
) -> Treatment:
    """Return the grid that just covers the ranges: affine, or symmetric around zero."""
    low_code, high_code = code_limits(form)
    lows, highs = np.minimum(ranges.lows, 0.0), np.maximum(ranges.highs, 0.0)
    if symmetric:
        middle = (low_code + high_code + 1) // 2
        reach = np.maximum(-lows, highs)
        scale = reach / (high_code - middle)
        zero = np.full(scale.shape, middle, np.int64)
    else:
        scale = (highs - lows) / (high_code - low_code)
        safe = np.where(scale == 0, 1.0, scale)
        zero = np.clip(np.rint(low_code - lows / safe), low_code, high_code).astype(np.int64)
    scale = np.where(scale == 0, 1.0, scale).astype(np.float32)
    encoding = Encoding(form, axis, None, scale, zero)
    return Treatment(change, encoding, bits=int(form.lstrip("uint")))


def _per_block(form: str, values: NDArray[np.float32]) -> Treatment:
    signed = form.removeprefix("u")
    _, high = code_limits(signed)
    blocks = np.abs(values).reshape(values.shape[0] // _BLOCK, _BLOCK, values.shape[1]).max(1)
    scale = np.where(blocks == 0, 1.0, blocks / high).astype(np.float32)
    encoding = Encoding(signed, 0, _BLOCK, scale, np.zeros(scale.shape, np.int64))
    return Treatment(f"per block of {_BLOCK}", encoding, bits=int(signed.lstrip("int")))


def _other_symmetry(site: Site, form: str, whole: _Ranges) -> Treatment:
    if _is_symmetric(site):
        return _on_range("affine on the range seen", form, whole)
    return _on_range("symmetric on the range seen", form, whole, symmetric=True)


def _clipped(form: str, whole: _Ranges, values: NDArray[np.float32]) -> list[Treatment]:
    """Return the ranges that keep 99.9 % of the values, and that lose least in squares."""
    flat = values.reshape(-1)
    some = np.ascontiguousarray(flat[:: max(1, ceil(flat.size / _SEARCH_SIZE))])
    share = np.quantile(np.abs(some), _PERCENTILE / 100) if some.size else 0.0
    reach = float(max(-whole.lows, whole.highs))
    found = []
    if 0 < share < reach:
        factor = float(share) / reach
        found.append(_on_range(f"clip at {_PERCENTILE} % of values", form, whole.times(factor)))
    tried = [
        _on_range("clip where squared error is least", form, whole.times(float(factor)))
        for factor in _SEARCHED
    ]
    errors = [float(((each.apply(some) - some) ** 2).sum(dtype=np.float64)) for each in tried]
    best = int(np.argmin(errors))
    if best < len(tried) - 1:
        found.append(tried[best])
    return found


def _without_the_far(form: str, whole: _Ranges, rest: float) -> Treatment:
    """Return the range of the values on the near side of a gap, with as much again in reserve.

    By squares or by percentiles a mask of -10000 is worth any number of codes; its effect at the
    output is that of any number that is far enough below the rest.
    """
    near = _Ranges(np.maximum(whole.lows, -2 * rest), np.minimum(whole.highs, 2 * rest))
    return _on_range(f"clip at {2 * rest:.3g}, twice the rest", form, near)


def smoothed(
    activation: Site,
    facts: SiteFacts,
    weight: Site,
    weight_values: NDArray[np.float32],
    *,
    axes: tuple[int, int],
) -> tuple[Treatment, Treatment] | None:
    """Return treatments that move the channels' scales from an activation into the next weight.

    With a_c the largest |activation| of channel c and w_c the largest |weight| of its row,
    channel c is divided by s_c = sqrt(a_c / w_c) and its row multiplied with it; both are then
    quantized on their new ranges. `axes` are the channel's axis in activation and weight.
    Returns None where formats do not allow it.
    """
    axis, weight_axis = axes
    forms = activation.encoding.number_format, weight.encoding.number_format
    if any(form not in _OPERATORS for form in forms):
        return None
    reach = np.maximum(np.abs(facts.channel_lows), np.abs(facts.channel_highs))
    others = tuple(i for i in range(weight_values.ndim) if i != weight_axis)
    rows = np.abs(weight_values).max(others).astype(np.float64)
    if reach.size != rows.size or not reach.size:
        return None
    factor = np.sqrt(np.maximum(reach, 1e-12) / np.maximum(rows, 1e-12))
    factor = (factor / np.exp(np.log(factor).mean())).astype(np.float32)
    act = _on_range(
        "",
        forms[0],
        _Ranges(facts.channel_lows / factor, facts.channel_highs / factor).whole(),
    )
    shape = [1] * weight_values.ndim
    shape[weight_axis] = factor.size
    moved = weight_values * factor.reshape(shape)
    highest = np.asarray(float(np.abs(moved).max()))
    signed = forms[1].removeprefix("u")
    if weight.encoding.axis is not None and weight.encoding.block_size is None:
        own = tuple(i for i in range(moved.ndim) if i != weight.encoding.axis % moved.ndim)
        highest = np.abs(moved).max(own).astype(np.float64)
    fold = _on_range(
        "", signed, _Ranges(-highest, highest), axis=weight.encoding.axis, symmetric=True
    )
    change = "move channel scales into the weight"
    return (
        replace(act, change=change, smoothing=factor, axis=axis),
        replace(fold, change=change, smoothing=1 / factor, axis=weight_axis),
    )


def _parameters(
    encoding: Encoding, shape: tuple[int, ...]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    assert encoding.scale is not None
    scale = spread(encoding.scale.astype(np.float64), encoding, shape)
    zero = np.zeros(scale.shape)
    if encoding.zero_point is not None:
        zero = spread(encoding.zero_point.astype(np.float64), encoding, shape)
    return scale.astype(np.float32), zero.astype(np.float32)
