"""One pass over a model file: what each tensor is, and where each byte goes."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from foldmark.compare.extremes import Setter, find_setter
from foldmark.compare.tally import can_tally, number_of, tally
from foldmark.compare.traces import Traces, find_traces
from foldmark.formats.stored import Array, Artefact, Part, StoredTensor, Values

__all__ = ["CodeUse", "Inspection", "ScaleUse", "TensorReport", "inspect_artefact"]

# Elements read at once: small enough for the cache and for the memory bound, whatever the file.
_PIECE = 1 << 22
_WORKERS = 2
# A smallest normal number for each type that a scale is stored in.
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
# One row rules a tensor when it is so many times larger than the middle one.
_RULING = 8
_SAMPLE_BYTES = 1 << 16
# dtype -> an unsigned integer of its width, and the bits of its exponent: all set is no number
_EXPONENTS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "float32": (np.uint32, 0x7F800000),
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
}


@dataclass(frozen=True)
class CodeUse:
    """Which codes occur.

    Attributes:
        used: how many different codes.
        possible: how many the format has.
        lowest, highest: the ends of what occurs.
        middle: the ends of the middle 99 % of all codes.
    """

    used: int
    possible: int
    lowest: int
    highest: int
    middle: tuple[int, int]


@dataclass(frozen=True)
class ScaleUse:
    """What scales occur, and which are none.

    Attributes:
        count: number of scales.
        smallest, largest: magnitudes of those that are finite and not zero.
        zero, subnormal, negative, infinite, nan: how many are so.
    """

    count: int
    smallest: float
    largest: float
    zero: int
    subnormal: int
    negative: int
    infinite: int
    nan: int


@dataclass(frozen=True)
class TensorReport:
    """What one tensor is.

    Attributes:
        tensor: where it lies and how it is stored.
        codes: None for plain tensors and codes wider than a byte.
        scales: None for plain tensors.
        setter: the element that set the largest scale.
        traces: what codes and scales show of their rule.
        warnings: what a reader should look at.
    """

    tensor: StoredTensor
    codes: CodeUse | None
    scales: ScaleUse | None
    setter: Setter | None
    traces: Traces | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """What a file holds.

    Attributes:
        artefact: the file.
        reports: one a tensor, in file order.
        account: bytes by what they serve; they sum to the size of the files.
        warnings: about the file as a whole.
    """

    artefact: Artefact
    reports: tuple[TensorReport, ...]
    account: dict[str, int]
    warnings: tuple[str, ...]


def inspect_artefact(
    artefact: Artefact, progress: Callable[[StoredTensor], None] | None = None
) -> Inspection:
    """Look at every tensor of a file, in memory that does not grow with the file.

    Args:
        artefact: an opened file.
        progress: called with each tensor when it is done.
    """

    def work(tensor: StoredTensor) -> TensorReport:
        report = inspect_tensor(tensor)
        if progress is not None:
            progress(tensor)
        return report

    with np.errstate(all="ignore"), ThreadPoolExecutor(_WORKERS) as pool:
        reports = tuple(pool.map(_quietly(work), artefact.tensors))
    return Inspection(
        artefact, reports, account_of(artefact), (*artefact.warnings, *_twins(artefact))
    )


def _quietly(
    work: Callable[[StoredTensor], TensorReport],
) -> Callable[[StoredTensor], TensorReport]:
    """Let hostile scales overflow without a word: numpy keeps its error state by thread."""

    def run(tensor: StoredTensor) -> TensorReport:
        with np.errstate(all="ignore"):
            return work(tensor)

    return run


def account_of(artefact: Artefact) -> dict[str, int]:
    """Say what each byte of the files is for; the parts sum to the files' size."""
    account: dict[str, int] = {}
    if artefact.compressed is None:
        for tensor in artefact.tensors:
            for part, nbytes in tensor.parts.items():
                account[part.value] = account.get(part.value, 0) + nbytes
    else:
        account["arrays, compressed"] = artefact.compressed
    ordered = [part.value for part in Part if account.get(part.value)]
    account = {name: account[name] for name in ordered} or account
    account["names, shapes, metadata"] = artefact.header_bytes
    rest = artefact.size - sum(account.values())
    if rest:
        account["padding and unused"] = rest
    return account


@dataclass
class _Running:
    """Sums over the pieces of a tensor."""

    counts: Array
    scale_counts: Array
    smallest: float = np.inf
    largest: float = 0.0
    largest_at: tuple[int, tuple[int, ...]] | None = None
    not_finite: int = 0
    rows: Array | None = None
    columns: Array | None = None


def inspect_tensor(tensor: StoredTensor) -> TensorReport:
    """Look at one tensor, piece by piece."""
    running = _Running(np.zeros(256, np.int64), np.zeros(6, np.int64))
    quantized = tensor.layout.is_quantized
    counted = quantized and can_tally(tensor.layout.number_format)
    if not tensor.elements:
        return TensorReport(tensor, None, None, None, None, ())
    if quantized or tensor.layout.number_format.startswith(("float", "bfloat")):
        for first, values in tensor.pieces(_PIECE):
            if counted:
                tally(values, running.counts)
            if quantized:
                _add_scales(running, tensor, first, values)
                _add_rows(running, tensor, values)
            else:
                running.not_finite += _count_not_finite(values.codes)
    codes = _code_use(running.counts, tensor.layout.number_format) if counted else None
    scales = _scale_use(running) if quantized else None
    setter = None
    if quantized and running.largest_at is not None:
        setter = find_setter(tensor, *running.largest_at)
    traces = find_traces(tensor) if quantized else None
    warnings = (*_scale_warnings(tensor, scales), *_code_warnings(tensor, codes, running))
    return TensorReport(tensor, codes, scales, setter, traces, warnings)


def _add_scales(running: _Running, tensor: StoredTensor, first: int, values: Values) -> None:
    if values.scale is None or not values.scale.size:
        return
    single = tensor.layout.block is not None and values.scale.size == 1
    if single and running.largest_at is not None:
        return  # one scale for the whole tensor, seen with the first piece
    magnitude = np.abs(values.scale)
    normal = _SMALLEST_NORMAL.get(tensor.layout.scale_format or "", 2.0**-126)
    running.scale_counts += (
        magnitude.size,
        np.count_nonzero(magnitude == 0),
        np.count_nonzero((magnitude < normal) & (magnitude > 0)),
        np.count_nonzero(values.scale < 0),
        np.count_nonzero(np.isinf(magnitude)),
        np.count_nonzero(np.isnan(magnitude)),
    )
    usable = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    if usable.size:
        running.smallest = min(running.smallest, float(usable.min()))
        largest = float(usable.max())
        if largest > running.largest:
            place = np.unravel_index(int(np.argmax(magnitude == largest)), magnitude.shape)
            running.largest, running.largest_at = largest, (first, tuple(int(i) for i in place))


def _add_rows(running: _Running, tensor: StoredTensor, values: Values) -> None:
    """Keep the largest magnitude of each row and column where one scale serves them all."""
    block, shape = tensor.layout.block, tensor.shape
    if block is None or len(shape) < 2 or any(b < n for b, n in zip(block, shape, strict=True)):
        return
    if values.codes.dtype.kind not in "iu" or values.codes.itemsize > 1:
        return
    codes = values.codes.reshape(values.codes.shape[0], -1)
    middle = np.asarray(values.zero_point if values.zero_point is not None else 0).reshape(-1)
    zero = int(middle[0]) if middle.size else 0
    rows = _magnitude(codes, zero, 1)
    columns = _magnitude(values.codes.reshape(-1, shape[-1]), zero, 0)
    running.rows = rows if running.rows is None else np.concatenate([running.rows, rows])
    running.columns = columns if running.columns is None else np.maximum(running.columns, columns)


def _magnitude(codes: Array, zero: int, axis: int) -> Array:
    high = codes.max(axis=axis).astype(np.int32) - zero
    low = zero - codes.min(axis=axis).astype(np.int32)
    return np.maximum(high, low)


def _count_not_finite(numbers: Array) -> int:
    exponent = _EXPONENTS.get(numbers.dtype.name)
    if exponent is None:
        return 0 if numbers.dtype.kind != "f" else int(np.count_nonzero(~np.isfinite(numbers)))
    width, mask = exponent
    bits = numbers.view(width) & width(mask)
    return int(np.count_nonzero(bits == mask)) if bits.max(initial=0) == mask else 0


def _code_use(counts: Array, number_format: str) -> CodeUse:
    numbers = number_of(number_format)
    order = np.argsort(numbers)
    counts, numbers = counts[order], numbers[order]
    present = np.flatnonzero(counts)
    below = np.cumsum(counts)
    inside = [int(np.searchsorted(below, below[-1] * q)) for q in (0.005, 0.995)]
    return CodeUse(
        len(present),
        _possible(number_format),
        int(numbers[present[0]]),
        int(numbers[present[-1]]),
        (int(numbers[inside[0]]), int(numbers[min(inside[1], 255)])),
    )


def _possible(number_format: str) -> int:
    if number_format == "ternary":
        return 3
    digits = re.search(r"\d+", number_format)
    return 1 << int(digits.group() if digits else 8)


def _scale_use(running: _Running) -> ScaleUse:
    count, zero, subnormal, negative, infinite, nan = (int(n) for n in running.scale_counts)
    smallest = running.smallest if np.isfinite(running.smallest) else 0.0
    return ScaleUse(count, smallest, running.largest, zero, subnormal, negative, infinite, nan)


# Forms whose rules choose a positive scale; elsewhere a negative one is a rule's own sign.
_POSITIVE = ("QDQ", "QLinear", "QGemm", "MatMulInteger", "TFLite", "GPTQ", "AWQ", "compressed")


def _scale_warnings(tensor: StoredTensor, scales: ScaleUse | None) -> list[str]:
    if scales is None:
        return []
    found = [
        (scales.zero, "zero: all weights under it become zero"),
        (scales.infinite, "infinite"),
        (scales.nan, "NaN"),
        (
            scales.subnormal,
            f"subnormal in {tensor.layout.scale_format}: coarse, some tools flush it",
        ),
    ]
    if tensor.layout.packing.startswith(_POSITIVE):
        found.append((scales.negative, "negative, which the format does not expect"))
    one = "scale is" if scales.count == 1 else f"of {scales.count} scales are"
    return [
        f"{'its' if scales.count == 1 else number} {one} {what}" for number, what in found if number
    ]


def _code_warnings(tensor: StoredTensor, codes: CodeUse | None, running: _Running) -> list[str]:
    warnings = []
    if running.not_finite:
        warnings.append(f"{running.not_finite} numbers are NaN or infinite")
    enough = codes is not None and tensor.elements >= 16 * codes.possible
    if codes is not None and enough and codes.used < codes.possible // 2:
        seen = f"{codes.lowest}..{codes.highest}"
        warnings.append(f"only {codes.used} of {codes.possible} codes occur ({seen})")
    for name, extent in (("row", running.rows), ("column", running.columns)):
        if extent is not None and extent.size >= 4:
            middle = float(np.median(extent))
            if middle and extent.max() > _RULING * middle:
                warnings.append(
                    f"{name} {int(extent.argmax())} alone sets the scale: the middle {name} "
                    f"reaches {middle:g} of {int(extent.max())}"
                )
    return warnings


def _twins(artefact: Artefact) -> list[str]:
    """Find tensors that hold the same bytes: first by a sample, then byte by byte."""
    groups: dict[tuple[object, ...], list[StoredTensor]] = {}
    for tensor in artefact.tensors:
        if tensor.nbytes >= 1 << 12 and tensor.spans:
            key = (tensor.shape, tensor.layout, *(_sampled(tensor)))
            groups.setdefault(key, []).append(tensor)
    found = []
    for group in groups.values():
        for other in group[1:]:
            if _same_bytes(group[0], other):
                found.append(f"{other.name!r} holds the same bytes as {group[0].name!r}")
    return found


def _sampled(tensor: StoredTensor) -> list[bytes]:
    samples = []
    for span in tensor.spans:
        length = min(_SAMPLE_BYTES, span.nbytes)
        for start in {0, (span.nbytes - length) // 2, span.nbytes - length}:
            samples.append(span.source.read(span.offset + start, length, tensor.name))
    return samples


def _same_bytes(one: StoredTensor, other: StoredTensor) -> bool:
    for a, b in zip(one.spans, other.spans, strict=False):
        if a.nbytes != b.nbytes:
            return False
        if a.source is b.source and a.offset == b.offset:
            continue
        for start in range(0, a.nbytes, 1 << 22):
            length = min(1 << 22, a.nbytes - start)
            left = a.source.array(np.uint8, a.offset + start, length, one.name)
            right = b.source.array(np.uint8, b.offset + start, length, other.name)
            if not np.array_equal(left, right):
                return False
    return True
