"""One pass over a model file: what each tensor is, and where each byte goes."""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np

from foldmark.compare.extremes import Setter, find_setter
from foldmark.compare.records import ScaleTally
from foldmark.compare.survey import Running, everything, in_pieces, stretches, survey
from foldmark.compare.tally import can_tally, number_of
from foldmark.compare.traces import Traces, find_traces
from foldmark.compare.twins import twin_candidates, twins
from foldmark.formats.stored import Artefact, Part, StoredTensor
from foldmark.formats.values import Array
from foldmark.kernels.threads import thread_count

__all__ = ["CodeUse", "Inspection", "ScaleUse", "TensorReport", "inspect_artefact"]

# One row rules a tensor when it is so many times larger than the middle one.
_RULING = 8


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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

    sums = {number: np.zeros(4, np.uint64) for number in twin_candidates(artefact)}

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
    warnings = (*artefact.warnings, *twins(artefact, sums))
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


class _Job:
    """One tensor to look at, cut into stretches for the threads.

    Args:
        tensor: where to look.
        summed: uint64 (4,): a checksum of its bytes, None where nobody asks for one.
    """

    def __init__(self, tensor: StoredTensor, summed: Array | None) -> None:
        self.whole, self.summed = tensor, summed
        self.tensor = in_pieces(tensor)
        self.stretches = stretches(self.tensor) if summed is None else [everything(self.tensor)]
        self._running, self._next = Running(), 0
        self._early: dict[int, Running] = {}
        self._lock = Lock()

    def survey(self, number: int) -> TensorReport | None:
        """Look at one stretch; the one that is done last gives the tensor's report."""
        found = survey(self.tensor, *self.stretches[number], self.summed)
        with self._lock:
            self._early[number] = found
            while self._next in self._early:
                self._running.append(self._early.pop(self._next))
                self._next += 1
            if self._next < len(self.stretches):
                return None
        return _report(self.whole, self.tensor, self._running)


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


def _report(whole: StoredTensor, tensor: StoredTensor, running: Running) -> TensorReport:
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
        if tensor.shape != whole.shape:
            index = np.unravel_index(setter.index[0], whole.shape)
            setter = replace(setter, index=tuple(int(i) for i in index))
    traces = find_traces(tensor, running.ends) if quantized else None
    warnings = (*_scale_warnings(tensor, scales, running), *_code_warnings(tensor, codes, running))
    return TensorReport(whole, codes, scales, setter, traces, warnings)


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


def _scale_warnings(tensor: StoredTensor, scales: ScaleUse | None, running: Running) -> list[str]:
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


def _code_warnings(tensor: StoredTensor, codes: CodeUse | None, running: Running) -> list[str]:
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
