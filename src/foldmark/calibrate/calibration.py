"""Ranges of a model's activations from data, a batch at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from foldmark.calibrate.observers import Observer, Range, choose_range
from foldmark.calibrate.statistics import Channels, Detail, Statistics
from foldmark.calibrate.tensors import observable
from foldmark.errors import DataMismatch, InvalidRecipe, NoData
from foldmark.graphs.ends import ends_from, with_ends
from foldmark.graphs.exposing import defined_names, expose, inner_graphs, uniquely_named
from foldmark.runtimes.batches import Batch, Data
from foldmark.runtimes.onnxruntime import Session

__all__ = ["Calibration", "calibrate"]

_SETTLED = 0.01  # a batch that widens no range by more than this adds nothing
Progress = Callable[[int], None]


@dataclass
class Calibration:
    """What was seen of a model's activations.

    Attributes:
        tensors: statistics by tensor.
        samples: samples that passed.
        batches: batches that passed.
        settled_after: the batch (from 1) after which no range grew by more than 1 %.
        sources: where the samples came from.
        channels: statistics by channel of the outer tensors, when they were asked for.
    """

    tensors: dict[str, Statistics] = field(default_factory=dict)
    samples: int = 0
    batches: int = 0
    settled_after: int = 0
    sources: tuple[str, ...] = ()
    channels: dict[str, Channels] = field(default_factory=dict)

    def merge(self, other: "Calibration") -> None:
        """Take in another run over the same model.

        Raises DataMismatch when the two observed different tensors.
        """
        if self.tensors and self.tensors.keys() != other.tensors.keys():
            odd = sorted(self.tensors.keys() ^ other.tensors.keys())
            raise DataMismatch(
                "the two runs did not observe the same tensors",
                where=", ".join(other.sources),
                got=f"{len(odd)} that only one has, {odd[0]!r} first",
            )
        axes = {each.axis for run in (self, other) for each in run.channels.values()}
        if self.tensors and (len(axes) > 1 or self.channels.keys() != other.channels.keys()):
            raise DataMismatch(
                "the two runs did not look at the same channels", where=", ".join(other.sources)
            )
        if not self.tensors:
            self.tensors = {name: Statistics(each.detail) for name, each in other.tensors.items()}
            self.channels = {
                name: Channels(each.axis, each.detail) for name, each in other.channels.items()
            }
        for name, seen in other.channels.items():
            self.channels[name].merge(seen)
        for name, each in other.tensors.items():
            self.tensors[name].merge(each)
        self.settled_after = max(self.settled_after, self.batches + other.settled_after)
        self.samples += other.samples
        self.batches += other.batches
        self.sources += other.sources

    @property
    def unseen(self) -> tuple[str, ...]:
        """The tensors of which no sample showed a value: in branches that none took."""
        return tuple(name for name, each in self.tensors.items() if not each.batches)

    def ranges(self, observer: Observer) -> dict[str, Range]:
        """Return the range of every tensor that was seen."""
        return {
            name: choose_range(each, observer, name)
            for name, each in self.tensors.items()
            if each.batches
        }

    def channel_ranges(self, observer: Observer) -> dict[str, list[Range]]:
        """Return the ranges of every channel, of the tensors that have them."""
        return {
            name: [choose_range(each, observer, name) for each in seen.each]
            for name, seen in self.channels.items()
            if seen.each
        }

    def unchanged(self, observer: Observer) -> tuple[int, int]:
        """Return (tensors for which the method gave what min-max gives, tensors)."""
        plain = self.ranges(Observer(symmetry=observer.symmetry))
        chosen = self.ranges(observer)
        return sum(chosen[name] == plain[name] for name in plain), len(plain)

    def outside(self, held_out: "Calibration", observer: Observer) -> Iterator[tuple[str, float]]:
        """Yield (tensor, part of the held-out values outside the range), worst first.

        Raises InvalidScheme unless the held-out run kept histograms.
        """
        ranges = self.ranges(observer)
        shares = []
        for name, each in held_out.tensors.items():
            if name not in ranges or not each.batches:
                continue
            edges, counts = each.histogram.edges, each.histogram.counts
            # A bin counts as outside when all of it is; ends inside a bin cost nothing then.
            out = (edges[1:] <= ranges[name].low) | (edges[:-1] > ranges[name].high)
            shares.append((name, float(counts[out].sum() / max(counts.sum(), 1))))
        yield from sorted(shares, key=lambda pair: -pair[1])


def calibrate(
    model: onnx.ModelProto,
    data: Data,
    *,
    observer: Observer | None = None,
    tensors: Sequence[str] | None = None,
    batch_size: int = 8,
    threads: int | None = None,
    detail: Detail | None = None,
    channel_axis: int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Run the model on the data and return what its activations looked like.

    The activations of a batch are reduced and dropped, inside the graph where their ends are
    all that is asked: memory does not grow with the number of batches.

    Args:
        model: the float model.
        data: samples.
        observer: decides what must be remembered, and the moving average's constant.
        tensors: which activations; those worth quantizing when None.
        batch_size: samples of one run.
        threads: threads of one operator.
        detail: what to remember, when not what the observer needs.
        channel_axis: look at every channel along this axis too, as the observer needs.
        progress: called with the number of samples done.

    Raises:
        NonFiniteValue: an activation is NaN or infinite; names tensor and batch.
        NoData: there is nothing to observe in the model.
        InvalidRecipe: a named tensor does not exist.
    """
    observer = observer or Observer()
    model = uniquely_named(model)
    if tensors is not None:
        _check_names(model, tensors)
    wanted = observable(model) if tensors is None else tuple(dict.fromkeys(tensors))
    if not wanted:
        raise NoData("no activation here is worth observing", where="the model")
    kept = detail or observer.detail
    found = {name: Statistics(kept, observer.constant) for name in wanted}
    channels: dict[str, Channels] = {}
    if channel_axis is not None:
        outer = set(defined_names(model.graph))
        channels = {
            name: Channels(channel_axis, observer.detail, observer.constant)
            for name in wanted
            if name in outer
        }
    look = _Look(model, wanted, kept, threads)
    samples, settled, number = 0, 0, 0
    for number, batch in enumerate(data.batches(batch_size), 1):
        before = {name: each.maximum - each.minimum for name, each in found.items()}
        look.at(batch, found, channels, number - 1)
        grew = number == 1 or any(
            each.maximum - each.minimum > before[name] * (1 + _SETTLED)
            for name, each in found.items()
        )
        settled = number if grew else settled
        samples += batch.samples
        if progress is not None:
            progress(samples)
    return Calibration(found, samples, number, settled, (data.description,), channels)


class _Look:
    """A session that shows the wanted tensors of a batch, or the ends of them alone.

    Where the ends are enough they are taken inside the graph, and no activation leaves it.
    """

    def __init__(
        self, model: onnx.ModelProto, wanted: Sequence[str], detail: Detail, threads: int | None
    ) -> None:
        self._model, outer = expose(model, wanted)
        self._names = {name: outer.get(name, name) for name in wanted}
        self._threads = threads
        self._ends = detail is Detail.ENDS
        if self._ends:
            asked = with_ends(self._model, list(self._names.values()))
            self._session = Session(asked, threads=threads)

    def at(
        self,
        batch: Batch,
        found: Mapping[str, Statistics],
        channels: Mapping[str, Channels],
        number: int,
    ) -> None:
        """Take a batch into the statistics.

        Raises NonFiniteValue naming tensor and batch.
        """
        if self._ends and not channels:
            seen = ends_from(self._session.run(batch.feeds), list(self._names))
            if all(each.finite for each in seen.values()):
                for name, each in seen.items():
                    found[name].update_ends(each.low, each.high, each.count, name, number)
                return
        values = self._whole.run(batch.feeds) | batch.feeds
        for name, outer in self._names.items():
            found[name].update(values[outer], name, number)
            if name in channels:
                channels[name].update(values[outer], name, number)

    @cached_property
    def _whole(self) -> Session:
        inputs = {each.name for each in self._model.graph.input}
        taps = [name for name in self._names.values() if name not in inputs]
        return Session(self._model, taps=taps, threads=self._threads)


def _check_names(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    known = set(_all_names(model.graph))
    for name in tensors:
        if name not in known:
            raise InvalidRecipe("the model has no such tensor", where=f"tensor {name!r}")


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from defined_names(graph)
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _all_names(inner)
