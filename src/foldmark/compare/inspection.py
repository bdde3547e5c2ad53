"""One pass over a model file: what each tensor is, and where each byte goes."""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from threading import Lock

import numpy as np

from foldmark.compare.extremes import Setter, block_extremes, find_setter, inside, spans_walk
from foldmark.compare.records import ScaleTally, add_checksum, add_scales, survey_records
from foldmark.compare.tally import EXPONENTS, can_tally, count_not_finite, number_of, tally
from foldmark.compare.traces import Traces, find_traces, has_ends, merged
from foldmark.formats.stored import Artefact, Part, Span, StoredTensor
from foldmark.formats.values import Array, Values
from foldmark.kernels.threads import thread_count

__all__ = ["CodeUse", "Inspection", "ScaleUse", "TensorReport", "inspect_artefact"]

# Elements read at once: small enough for the cache and for the memory bound, whatever the file.
_PIECE = 1 << 20
_RAW_PIECE = 1 << 19
# Where what is read at once holds more than this, a tensor is read as one axis if it can be.
_LONGEST = 1 << 22
# Bytes that one thread takes at a time of a tensor.
_STRETCH = 1 << 24
# Tensors of fewer bytes are read as values: numpy is quick enough for them.
_SMALL = 1 << 20
# A smallest normal number for each type that a scale is stored in.
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
# One row rules a tensor when it is so many times larger than the middle one.
_RULING = 8
# Tensors that hold the same bytes are worth a word from this size on.
_SMALL_TWIN, _SAMPLE_BYTES = 1 << 12, 1 << 12


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
        modules: the module of weights whose names do not tell it, by name.
    """

    artefact: Artefact
    reports: tuple[TensorReport, ...]
    account: dict[str, int]
    warnings: tuple[str, ...]
    modules: Mapping[str, str] = field(default_factory=dict)


def inspect_artefact(
    artefact: Artefact, progress: Callable[[StoredTensor], None] | None = None
) -> Inspection:
    """Look at every tensor of a file, in memory that does not grow with the file.

    Args:
        artefact: an opened file.
        progress: called with each tensor when it is done.
    """

    sums = {number: np.zeros(4, np.uint64) for number in _candidates(artefact)}

    def work(task: tuple[_Job, int]) -> TensorReport | None:
        job, number = task
        with np.errstate(all="ignore"):  # hostile scales overflow; numpy keeps this by thread
            report = job.survey(number)
        if report is not None and progress is not None:
            progress(report.tensor)
        return report

    jobs = (_Job(tensor, sums.get(id(tensor))) for tensor in artefact.tensors)
    tasks = ((job, number) for job in jobs for number in range(len(job.stretches)))
    with ThreadPoolExecutor(max(2, thread_count())) as pool:
        reports = tuple(report for report in pool.map(work, tasks) if report is not None)
    warnings = (*artefact.warnings, *_twins(artefact, sums))
    return Inspection(artefact, reports, account_of(artefact), warnings, _modules(artefact))


def _modules(artefact: Artefact) -> Mapping[str, str]:
    """Return the module of weights whose names tell none: those of ONNX models."""
    if artefact.format_name != "ONNX":
        return {}
    from foldmark.compare.modules import module_paths  # noqa: PLC0415  (loads the onnx package)

    return module_paths(artefact)


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
    """Sums over the pieces of a tensor.

    Attributes:
        counts: how often each code occurs.
        scales: what the scales are.
        not_finite: numbers that are NaN or infinite.
        rows, columns: largest magnitude of each, where one scale serves them all.
        ends: lowest and highest code of each block, where blocks reach over all pieces.
    """

    counts: Array = field(default_factory=lambda: np.zeros(256, np.int64))
    scales: ScaleTally = field(default_factory=ScaleTally)
    not_finite: int = 0
    rows: Array | None = None
    columns: Array | None = None
    ends: tuple[Array, Array] | None = None

    def append(self, other: "_Running") -> None:
        """Add the sums over the pieces that come next."""
        self.counts += other.counts
        self.scales.append(other.scales)
        self.not_finite += other.not_finite
        if other.rows is not None and other.columns is not None:
            self.append_lines(other.rows, other.columns)
        if other.ends is not None:
            self.ends = merged(self.ends, other.ends)

    def append_lines(self, rows: Array, columns: Array) -> None:
        """Add the largest magnitudes of the next rows, and of all columns over them."""
        if self.rows is None or self.columns is None:
            self.rows, self.columns = rows, columns
        else:
            self.rows = np.concatenate([self.rows, rows])
            self.columns = np.maximum(self.columns, columns)


class _Job:
    """One tensor to look at, cut into stretches for the threads.

    Args:
        tensor: where to look.
        summed: uint64 (4,): a checksum of its bytes, None where nobody asks for one.
    """

    def __init__(self, tensor: StoredTensor, summed: Array | None) -> None:
        self.whole, self.summed = tensor, summed
        self.tensor = _in_pieces(tensor)
        self.stretches = _stretches(self.tensor) if summed is None else [_everything(self.tensor)]
        self._found: list[_Running | None] = [None] * len(self.stretches)
        self._left, self._lock = len(self.stretches), Lock()

    def survey(self, number: int) -> TensorReport | None:
        """Look at one stretch; the one that is done last gives the tensor's report."""
        self._found[number] = _survey(self.tensor, *self.stretches[number], self.summed)
        with self._lock:
            self._left -= 1
            if self._left:
                return None
        running = _Running()
        for found in self._found:
            if found is not None:
                running.append(found)
        self._found.clear()
        return _report(self.whole, self.tensor, running)


def inspect_tensor(tensor: StoredTensor, summed: Array | None = None) -> TensorReport:
    """Look at one tensor, piece by piece.

    Args:
        tensor: where to look.
        summed: uint64 (4,): a checksum of its bytes, None where nobody asks for one.
    """
    job = _Job(tensor, summed)
    *_, report = [job.survey(number) for number in range(len(job.stretches))]
    assert report is not None
    return report


def _everything(tensor: StoredTensor) -> tuple[int, int]:
    """Return the ends of what a survey of a whole tensor counts: records, floats or indices."""
    if _reads_records(tensor) and tensor.records is not None:
        return 0, tensor.records.count
    if _is_run_of_floats(tensor):
        return 0, tensor.elements
    return 0, tensor.shape[tensor.walk_axis] if tensor.shape else 1


def _stretches(tensor: StoredTensor) -> list[tuple[int, int]]:
    """Cut a tensor into parts of about so many bytes, at places where reading may begin."""
    _, length = _everything(tensor)
    whole_numbers = _reads_records(tensor) or _is_run_of_floats(tensor)
    step = 1 if whole_numbers else tensor.walk_step
    count = max(1, tensor.nbytes // _STRETCH)
    size = max(1, -(-length // (count * step))) * step
    return [(start, min(start + size, length)) for start in range(0, length, size)] or [(0, 0)]


def _reads_records(tensor: StoredTensor) -> bool:
    records = tensor.records
    return records is not None and bool(records.planes) and tensor.nbytes >= _SMALL


def _is_run_of_floats(tensor: StoredTensor) -> bool:
    """Say whether a tensor is plain numbers whose order does not matter to who counts NaN."""
    number_format = tensor.layout.number_format
    if tensor.layout.is_quantized or number_format not in EXPONENTS or len(tensor.spans) != 1:
        return False
    return tensor.spans[0].nbytes == tensor.elements * EXPONENTS[number_format][0]().itemsize


def _survey(tensor: StoredTensor, first: int, last: int, summed: Array | None) -> _Running:
    """Look at one stretch of a tensor.

    Args:
        tensor: where to look.
        first, last: its ends, as `_everything` counts them.
        summed: as for `inspect_tensor`.
    """
    running = _Running()
    records = tensor.records
    if not tensor.elements:
        return running
    if _reads_records(tensor) and records is not None:
        offset = records.offset + first * records.nbytes
        part = replace(records, offset=offset, count=last - first)
        survey_records(part, running.counts, running.scales, _normal(tensor), summed)
        return running
    if tensor.layout.is_quantized:
        _survey_pieces(running, tensor, first, last)
    elif tensor.layout.number_format in EXPONENTS:
        running.not_finite = _count_not_finite(tensor, first, last)
    if summed is not None:
        _sum_bytes(tensor, summed)
    return running


def _report(whole: StoredTensor, tensor: StoredTensor, running: _Running) -> TensorReport:
    """Say what a tensor is, which was looked at as it is or as one axis."""
    if not tensor.elements:
        return TensorReport(whole, None, None, None, None, ())
    quantized = tensor.layout.is_quantized
    counted = quantized and can_tally(tensor.layout.number_format)
    codes = _code_use(running.counts, tensor.layout.number_format) if counted else None
    scales = _scale_use(running.scales) if quantized else None
    setter = None
    if running.scales.largest_at[0] >= 0:
        setter = find_setter(tensor, int(running.scales.largest_at[0]))
        if tensor is not whole:
            index = np.unravel_index(setter.index[0], whole.shape)
            setter = replace(setter, index=tuple(int(i) for i in index))
    traces = find_traces(tensor, running.ends) if quantized else None
    warnings = (*_scale_warnings(tensor, scales, running), *_code_warnings(tensor, codes, running))
    return TensorReport(whole, codes, scales, setter, traces, warnings)


def _in_pieces(tensor: StoredTensor) -> StoredTensor:
    """Return the tensor as one axis where what is read at once would else be too long."""
    step = tensor.elements // max(1, tensor.shape[tensor.walk_axis]) if tensor.shape else 1
    flat = tensor.unrolled() if step * tensor.walk_step > _LONGEST else None
    return tensor if flat is None else flat


def _normal(tensor: StoredTensor) -> float:
    return _SMALLEST_NORMAL.get(tensor.layout.scale_format or "", 2.0**-126)


def _survey_pieces(running: _Running, tensor: StoredTensor, start: int, stop: int) -> None:
    counted = can_tally(tensor.layout.number_format)
    axis = tensor.walk_axis
    block = tensor.layout.block[axis] if tensor.layout.block and tensor.shape else 1
    long = spans_walk(tensor) or block > _PIECE  # one piece does not show a whole block
    for first, values in tensor.pieces(_PIECE, start, stop):
        if counted:
            tally(values, running.counts)
        # a block has one scale in however many pieces it is read, and so has a group whose
        # columns are no neighbours
        fresh = first % max(1, block) == 0 if values.group is None else first == 0
        if values.scale is not None and fresh:
            add_scales(running.scales, values.scale, _normal(tensor))
        if values.offset is not None and fresh:
            bad = values.offset.size - int(np.count_nonzero(np.isfinite(values.offset)))
            running.scales.bad_minima += bad
        if long and first < block and has_ends(tensor.layout, values):
            _add_ends(running, tensor, values)


def _add_ends(running: _Running, tensor: StoredTensor, values: Values) -> None:
    """Keep each block's lowest and highest code, and by row and column where all is one block."""
    block, codes = tensor.layout.block or (), values.codes
    if len(tensor.shape) >= 2 and all(b >= n for b, n in zip(block, tensor.shape, strict=True)):
        middle = np.asarray(values.zero_point if values.zero_point is not None else 0).reshape(-1)
        zero = int(middle[0]) if middle.size else 0
        lines = codes.reshape(-1, codes.shape[-1])
        low, high = lines.min(axis=0), lines.max(axis=0)
        columns = _magnitude(low, high, zero)
        flat = codes.reshape(codes.shape[0], -1)
        rows = _magnitude(flat.min(axis=1), flat.max(axis=1), zero)
        running.append_lines(rows, columns)
        one = (1,) * codes.ndim
        ends = low.min().reshape(one), high.max().reshape(one)
    else:
        ends = block_extremes(codes, inside(block, codes.shape))
    running.ends = merged(running.ends, ends)


def _magnitude(low: Array, high: Array, zero: int) -> Array:
    return np.maximum(high.astype(np.int32) - zero, zero - low.astype(np.int32))


def _count_not_finite(tensor: StoredTensor, first: int, last: int) -> int:
    """Count NaN and infinities among plain numbers, read from end to end, shape aside."""
    number_format = tensor.layout.number_format
    if _is_run_of_floats(tensor):
        itemsize, whole = EXPONENTS[number_format][0]().itemsize, tensor.spans[0]
        span = Span(whole.source, whole.offset + first * itemsize, (last - first) * itemsize)
        pieces = _raw_pieces(span, tensor.name)
        return sum(count_not_finite(raw, number_format) for raw in pieces)
    found = 0
    for _, values in tensor.pieces(_PIECE, first, last):
        raw = np.ascontiguousarray(values.codes).reshape(-1).view(np.uint8)
        found += count_not_finite(raw, number_format)
    return found


def _raw_pieces(span: Span, name: str) -> Iterator[Array]:
    """Yield a span's bytes in pieces, each in the same memory as the one before."""
    buffer = np.empty(min(_RAW_PIECE, span.nbytes), np.uint8)
    for start in range(0, span.nbytes, _RAW_PIECE):
        raw = buffer[: min(_RAW_PIECE, span.nbytes - start)]
        span.source.fill(raw, span.offset + start, name)
        yield raw


def _sum_bytes(tensor: StoredTensor, summed: Array) -> None:
    for span in tensor.spans:
        for raw in _raw_pieces(span, tensor.name):
            add_checksum(raw, summed)


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


def _scale_use(scales: ScaleTally) -> ScaleUse:
    count, zero, subnormal, negative, infinite, nan = (int(n) for n in scales.counts)
    smallest, largest = (float(end) if np.isfinite(end) else 0.0 for end in scales.ends)
    return ScaleUse(count, smallest, largest, zero, subnormal, negative, infinite, nan)


# Forms whose rules choose a positive scale; elsewhere a negative one is a rule's own sign.
_POSITIVE = ("QDQ", "QLinear", "QGemm", "MatMulInteger", "TFLite", "GPTQ", "AWQ", "compressed")


def _scale_warnings(tensor: StoredTensor, scales: ScaleUse | None, running: _Running) -> list[str]:
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
    warnings = [f"{_share(number, scales.count)} {what}" for number, what in found if number]
    bad = int(running.scales.bad_minima[0])
    return [*warnings, f"{bad} minima are NaN or infinite"] if bad else warnings


def _share(number: int, count: int) -> str:
    if count == 1:
        return "its scale is"
    return f"{number} of {count} scales {'is' if number == 1 else 'are'}"


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


def _candidates(artefact: Artefact) -> set[int]:
    """Return the ids of tensors whose bytes agree with another's in a few samples."""
    groups: dict[tuple[object, ...], list[StoredTensor]] = {}
    for tensor in artefact.tensors:
        if tensor.nbytes >= _SMALL_TWIN and tensor.spans:
            key = (tensor.shape, tensor.layout, tuple(span.nbytes for span in tensor.spans))
            groups.setdefault(key, []).append(tensor)
    alike: dict[tuple[object, ...], list[int]] = {}
    for shared, group in groups.items():
        for tensor in group if len(group) > 1 else ():
            alike.setdefault((shared, _sampled(tensor)), []).append(id(tensor))
    return {number for numbers in alike.values() if len(numbers) > 1 for number in numbers}


def _sampled(tensor: StoredTensor) -> bytes:
    samples = blake2b()
    for span in tensor.spans:
        length = min(_SAMPLE_BYTES, span.nbytes)
        for start in (0, (span.nbytes - length) // 2, span.nbytes - length):
            samples.update(span.source.read(span.offset + start, length, tensor.name))
    return samples.digest()


def _twins(artefact: Artefact, sums: Mapping[int, Array]) -> list[str]:
    """Say which tensors hold the same bytes."""
    first: dict[tuple[object, ...], str] = {}
    found = []
    for tensor in artefact.tensors:
        if id(tensor) in sums:
            key = (tensor.shape, tensor.layout, sums[id(tensor)].tobytes())
            if key in first:
                found.append(f"{tensor.name!r} holds the same bytes as {first[key]!r}")
            first.setdefault(key, tensor.name)
    return found
