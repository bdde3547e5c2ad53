"""Samples for a model, checked against its inputs and cut into batches that stream.

The first axis of every array counts the samples. Any source can be passed over again and
again; an iterator and a calibration reader can't, so they are read once and kept in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import DataMismatch, NoData
from foldmark.runtimes.inputs import ModelInput, check_array, describe_inputs, model_inputs
from foldmark.runtimes.labels import read_labels
from foldmark.runtimes.sources import (
    Arrays,
    FunctionData,
    RandomData,
    called,
    function_chunks,
    npz_paths,
    random_arrays,
    read_npz,
)

__all__ = ["Batch", "Data", "DataLike", "open_data"]

DataLike = Any
"""What `open_data` takes; see there."""

_USUAL_LABELS = "labels"  # taken where it is, not missed where it is not
_COUNTED = 64  # samples that are joined to be counted: they need not all be in memory
_Chunk = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Batch:
    """Some consecutive samples, ready to be fed.

    Attributes:
        feeds: array per input name.
        labels: integers (or what the score reads), first axis = samples, or None.
        first: index of the first sample among all.
        samples: how many there are.
    """

    feeds: dict[str, NDArray[np.generic]]
    labels: NDArray[Any] | None
    first: int
    samples: int


@dataclass(frozen=True)
class Data:
    """Samples that can be iterated again and again in batches.

    Attributes:
        inputs: the model's inputs.
        description: where the samples come from, as reports print it.
        is_random: True when they were drawn, not collected.
        chunks: starts a new pass; yields dicts of arrays, first axis = samples.
        labels: one label (or row of labels) per sample, None to take those that stand beside
            the inputs.
        label_name: name of the array of labels beside the inputs, where there is one.
        limit: at most so many samples, None for all.
        label_kinds: numpy's letters for the types that labels may have: whole numbers, unless
            the user's own score reads them.
        labels_from: where `labels` come from, as messages print it.
    """

    inputs: tuple[ModelInput, ...]
    description: str
    is_random: bool
    chunks: Callable[[], Iterator[Arrays]]
    labels: NDArray[Any] | None = None
    label_name: str = _USUAL_LABELS
    limit: int | None = None
    label_kinds: str = "iu"
    labels_from: str = "the labels given"

    @property
    def samples(self) -> int:
        """How many samples there are; one pass over the data."""
        return self._census[0]

    @property
    def largest_label(self) -> int | None:
        """The largest of the whole numbers that stand as labels, None without any; likewise."""
        return self._census[1]

    @cached_property
    def _census(self) -> tuple[int, int | None]:
        samples, largest = 0, None
        for batch in self.batches(_COUNTED):
            samples += batch.samples
            labels = batch.labels
            if labels is not None and labels.size and labels.dtype.kind in "iu":
                most = int(labels.max())
                largest = most if largest is None else max(largest, most)
        return samples, largest

    @property
    def labels_stand_in(self) -> str:
        """Where the labels are, as messages print it: a place of their own or the samples'."""
        return self.description if self.labels is None else self.labels_from

    def without_labels(self) -> "Data":
        """Return the same samples for work that needs no labels, whatever stands beside them."""
        return replace(self, labels=None, label_name="")

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield checked batches of at most `size` samples, in order.

        A model that fixes its first axis is fed so many at once, whatever `size` says; one
        whose inputs have no axis for samples is fed one sample at a time.

        Raises:
            DataMismatch: an array is missing or of the wrong type, rank or size.
            NonFiniteValue: NaN or infinity in an array.
            NoData: there is not a single sample.
        """
        first = 0
        for arrays in self._limited(_merged(self._checked(), size)):
            samples = self._count(arrays)
            for start, stop in self._cuts(arrays, samples, size):
                labels = self._labels(arrays, first, slice(start, stop))
                yield Batch(self._cut(arrays, start, stop), labels, first + start, stop - start)
            first += samples
        if first == 0:
            raise NoData(
                "no samples", where=self.description, expected=describe_inputs(self.inputs)
            )
        if self.labels is not None and self.limit is None and len(self.labels) > first:
            raise DataMismatch(
                "more labels than samples",
                where=self.labels_from,
                got=f"{len(self.labels)} labels for {first} samples",
                expected="one per sample",
            )

    def _checked(self) -> Iterator[_Chunk]:
        known = {each.name for each in self.inputs} | {self.label_name} - {""}
        for chunk in self.chunks():
            if not isinstance(chunk, Mapping):
                raise DataMismatch(
                    "the data yields something that is not a dict of arrays",
                    where=self.description,
                    got=type(chunk).__name__,
                    expected=describe_inputs(self.inputs),
                )
            self._check_names(chunk)
            arrays = {name: self._array(chunk, name) for name in chunk if name in known}
            for each in self.inputs:
                check_array(arrays[each.name], each, self.description)
            yield arrays

    def _array(self, chunk: Arrays, name: str) -> NDArray[np.generic]:
        try:
            return np.asarray(chunk[name])
        except ValueError:
            raise DataMismatch(
                f"what it gives for {name!r} is no array",
                where=self.description,
                got="rows of different lengths",
                expected=describe_inputs([i for i in self.inputs if i.name == name]),
            ) from None

    def _check_names(self, chunk: Arrays) -> None:
        missing = [each for each in self.inputs if each.name not in chunk]
        if missing:
            raise DataMismatch(
                f"no array named {missing[0].name!r}",
                where=self.description,
                got=", ".join(sorted(map(str, chunk))) or "no array",
                expected=describe_inputs(self.inputs),
            )

    def _limited(self, chunks: Iterable[_Chunk]) -> Iterator[_Chunk]:
        left = self.limit
        for chunk in chunks:
            if left is None:
                yield chunk
                continue
            if left == 0:
                return
            keep = min(left, self._count(chunk))
            yield {name: each[:keep] if each.ndim else each for name, each in chunk.items()}
            left -= keep

    def _count(self, arrays: _Chunk) -> int:
        counts = {name: len(array) for name, array in arrays.items() if array.ndim}
        if len(set(counts.values())) > 1:
            raise DataMismatch(
                "the arrays do not have the same number of samples",
                where=self.description,
                got=", ".join(f"{name} {count}" for name, count in counts.items()),
                expected="one number: the first axis of every array counts the samples",
                todo="where an input has its samples elsewhere, stack whole inputs: one axis more",
            )
        return next(iter(counts.values()), 1)

    def _stacked(self, arrays: _Chunk) -> bool:
        return any(
            each.shape is not None and arrays[each.name].ndim == len(each.shape) + 1
            for each in self.inputs
        )

    def _cuts(self, arrays: _Chunk, samples: int, size: int) -> Iterator[tuple[int, int]]:
        step = max(1, size)
        if self._stacked(arrays):
            step = 1
        elif fixed := [each.batch for each in self.inputs if each.batch is not None]:
            step = fixed[0]
            if samples % step:
                raise DataMismatch(
                    f"the model takes {step} samples at once",
                    where=self.description,
                    got=f"{samples} samples",
                    expected=f"a multiple of {step}",
                )
        for start in range(0, samples, step):
            yield start, min(start + step, samples)

    def _cut(self, arrays: _Chunk, start: int, stop: int) -> _Chunk:
        cut = {}
        for each in self.inputs:
            array = arrays[each.name]
            stacked = each.shape is not None and array.ndim == len(each.shape) + 1
            part = array[start] if stacked else array[start:stop] if array.ndim else array
            cut[each.name] = np.require(part, requirements="C")
        return cut

    def _labels(self, arrays: _Chunk, first: int, rows: slice) -> NDArray[Any] | None:
        where = self.labels_stand_in
        if self.labels is not None:
            found: NDArray[np.generic] = self.labels[first + rows.start : first + rows.stop]
        elif self.label_name in arrays and self.label_name not in {i.name for i in self.inputs}:
            found = arrays[self.label_name][rows]
        elif self.label_name in ("", _USUAL_LABELS):
            return None
        else:
            raise DataMismatch(
                f"no array named {self.label_name!r} to take labels from",
                where=self.description,
                got=", ".join(sorted(arrays)),
            )
        whole = self.label_kinds == "iu"
        if found.dtype.kind not in self.label_kinds:
            raise DataMismatch(
                "the labels do not fit the samples",
                where=where,
                got=f"labels of {found.dtype}",
                expected="one integer per sample" if whole else "one number per sample",
                todo="convert them with .astype('int64')" if found.dtype.kind == "f" else "",
            )
        if len(found) != rows.stop - rows.start:
            raise DataMismatch(
                "fewer labels than samples",
                where=where,
                got=f"{first + rows.start + len(found)} labels for {first + rows.stop} samples",
                expected="one per sample",
            )
        return found.astype(np.int64 if found.dtype.kind in "iu" else np.float64)


def open_data(
    data: DataLike,
    model: onnx.ModelProto,
    labels: NDArray[Any] | str | Path | None = None,
    label_name: str = _USUAL_LABELS,
    limit: int | None = None,
) -> Data:
    """Return the samples for a model from any of the forms in which people have them.

    data:
        a path to an .npz file of named arrays, or to a folder of such files
        a dict of arrays; a list (or other re-iterable) of dicts; a callable that returns one
        an iterator of dicts or an ONNX Runtime CalibrationDataReader (read once, kept)
        `FunctionData`, `RandomData`, or `Data` itself
    labels: one per sample, or the path of a file of them; without them the array `label_name`
        beside the inputs, if any.
    limit: at most so many samples.

    Raises:
        NoData: `data` is None or empty; the message lists the inputs needed.
        DataMismatch: it is of a type that is none of these, or `labels` are no array.
        FileUnreadable: a path that leads nowhere.
    """
    if isinstance(data, Data):
        return data
    inputs = model_inputs(model)
    if data is None:
        raise NoData(
            "this needs data",
            expected=f"arrays for {describe_inputs(inputs)}",
            todo="give an .npz, a folder of them or file.py:function; random:N draws some",
        )
    chunks, description = _chunks(data, model)
    opened = Data(
        inputs, description, isinstance(data, RandomData), chunks, None, label_name, limit
    )
    if isinstance(labels, str | Path):
        return replace(opened, labels=read_labels(Path(labels)), labels_from=str(labels))
    return opened if labels is None else replace(opened, labels=_array_of_labels(labels))


def _array_of_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as an array with an axis of samples; raises DataMismatch for a number."""
    array = np.asarray(labels)
    if array.ndim == 0:
        raise DataMismatch(
            "no axis of samples",
            where="the labels given",
            got="a single number",
            expected="one integer per sample",
        )
    return array


def _chunks(data: DataLike, model: onnx.ModelProto) -> tuple[Callable[[], Iterator[Arrays]], str]:
    start: Callable[[], Iterator[Arrays]]
    match data:
        case str() | Path():
            paths = npz_paths(Path(data))
            start, description = lambda: map(read_npz, paths), str(data)
        case RandomData():
            drawn = random_arrays(data, model)
            start, description = lambda: iter([drawn]), f"random:{data.samples} (not real data)"
        case FunctionData():
            start, description = function_chunks(data), f"{data.path}:{data.function}"
        case Mapping():
            start, description = lambda: iter([data]), "the arrays given"
        case _ if hasattr(data, "get_next"):
            read = list(iter(data.get_next, None))
            start, description = lambda: iter(read), "the calibration reader"
        case Iterator():
            kept = list(data)
            start, description = lambda: iter(kept), "the iterator given"
        case Iterable():
            start, description = lambda: iter(data), "the samples given"
        case _ if callable(data):
            start, description = lambda: called(data), "the function given"
        case _:
            raise DataMismatch(
                "not a form of data that is known",
                got=type(data).__name__,
                expected="a path, a dict of arrays, an iterable of such or a calibration reader",
            )
    return start, description


def _merged(chunks: Iterable[_Chunk], size: int) -> Iterator[_Chunk]:
    """Join consecutive chunks of equal shapes until they fill a batch."""
    waiting: list[_Chunk] = []
    for chunk in chunks:
        if waiting and (_shapes(waiting[0]) != _shapes(chunk) or _length(waiting) >= size):
            yield _joined(waiting)
            waiting = []
        waiting.append(chunk)
    if waiting:
        yield _joined(waiting)


def _shapes(chunk: _Chunk) -> dict[str, object]:
    """Return what chunks must share to be joined: shapes of samples, and scalars themselves."""
    return {name: a.shape[1:] if a.ndim else a.item() for name, a in chunk.items()}


def _length(chunks: list[_Chunk]) -> int:
    return sum(max((len(a) for a in chunk.values() if a.ndim), default=1) for chunk in chunks)


def _joined(chunks: list[_Chunk]) -> _Chunk:
    if len(chunks) == 1:
        return chunks[0]
    return {
        name: np.concatenate([chunk[name] for chunk in chunks])
        if chunks[0][name].ndim
        else chunks[0][name]
        for name in chunks[0]
    }
