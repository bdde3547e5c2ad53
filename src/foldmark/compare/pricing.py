"""What each decision that two files make differently costs at the output.

Both quantized models and the float one run on the same data, so that with M the metric

    M(B) - M(A) = sum over decisions of their prices + together + kernel

The price of a decision is the mean of two swaps: B's choice put into A, all else as in A, and A's
choice put back into B. To second order that mean is a decision's share in whatever order they are
swapped; what more than two of them do together is the line `together`. Every swap is predicted
by the ledger's what-if (no quantized model runs for it) and then run in ONNX Runtime.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from foldmark import rules
from foldmark.compare.mixing import Mixture, Unit
from foldmark.errors import FoldmarkError, NoDerivative
from foldmark.exact.rule import Rule
from foldmark.formats.values import Array
from foldmark.graphs.light import LightModel, lighten
from foldmark.graphs.sites import Encoding, QuantizedGraph, Site, SiteKind
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.group import dequantize_group
from foldmark.ledger.choice import MetricChoice, check_same_outputs, choose_metric
from foldmark.ledger.metrics import Metric
from foldmark.ledger.models import Models, is_constant
from foldmark.ledger.replay import Integral, Recording, Replay, dot
from foldmark.ledger.targets import BatchTarget, Ruler
from foldmark.ledger.treatments import refolded
from foldmark.runtimes.batches import Batch, Data, DataLike, open_data
from foldmark.runtimes.onnxruntime import Optimization, Session

__all__ = ["ActivationPrice", "Price", "Prices", "price_decisions"]

_NODES = 4
_LARGEST_BATCH = 32
_ACTIVATIONS = "activations"
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Price:
    """One decision at the output, in the metric's unit; positive where B's choice is worse.

    Attributes:
        unit: the decision.
        weights: how many weights it touches; 0 for the activations.
        predicted: by the what-if; None where there is no derivative.
        measured: the mean of the two swaps.
        into_left: what B's choice does to A; None where A's graph has no place for it.
        out_of_right: what A's choice, put into B, saves; None likewise.
        share: of the measured difference.
    """

    unit: Unit
    weights: int
    predicted: float | None
    measured: float
    into_left: float | None
    out_of_right: float | None
    share: float


@dataclass(frozen=True)
class ActivationPrice:
    """An activation that the two models quantize differently.

    Attributes:
        name: of the value.
        left, right: how each side does it, in words.
        amount: what its error moves the output by, B's less A's, by the two accounts.
    """

    name: str
    left: str
    right: str
    amount: float


@dataclass(frozen=True)
class Prices:
    """What a difference costs, and which decision how much of it.

    Attributes:
        metric: how the outputs are compared.
        outputs: which of them.
        left, right: the metric of each file against the float model, on real kernels.
        prices: by size.
        together: what no decision does alone.
        kernel: what the real kernels of B add beyond its simulation, less A's.
        activations: the largest ones.
        samples: how many were run.
        data: where they come from.
        is_random: whether they were drawn.
        notes: what a reader must know.
    """

    metric: Metric
    outputs: tuple[str, ...]
    left: float
    right: float
    prices: tuple[Price, ...]
    together: float
    kernel: float
    activations: tuple[ActivationPrice, ...]
    samples: int
    data: str
    is_random: bool
    notes: tuple[str, ...]

    @property
    def difference(self) -> float:
        """M(B) - M(A), measured."""
        return self.right - self.left


def price_decisions(
    exact: onnx.ModelProto,
    left: onnx.ModelProto | None,
    right: onnx.ModelProto | None,
    mixtures: Sequence[Mixture],
    data: DataLike,
    *,
    metric: Metric | None = None,
    samples: int | None = None,
    on_samples: Callable[[int, int], None] | None = None,
) -> Prices:
    """Price every decision that two files make differently.

    Args:
        exact: the float model.
        left, right: the two files as models; None for a file of weights, which are then put
            into the float model.
        mixtures: every weight that both hold, named as in the float model.
        data: see `open_data`; first axis = samples.
        metric: what is compared; chosen by the output's name and shape when None.
        samples: at most so many.
        on_samples: called with samples done and samples in all.

    Raises:
        BadInput: a model or the data can't be used; see `foldmark.errors`.
    """
    sides = [_Side(exact, model, mixtures, k) for k, model in enumerate((left, right))]
    opened = open_data(data, sides[0].models.widest, None, "labels", samples)
    size = min(_LARGEST_BATCH, max(1, opened.samples // 4))
    pricing = _Pricing(sides[0], sides[1], tuple(mixtures))
    choice = pricing.choose(next(iter(opened.batches(size))), metric)
    ruler, done, count = Ruler(choice), 0, opened.samples
    for batch in opened.batches(size):
        pricing.add(batch, ruler)
        done += batch.samples
        if on_samples is not None:
            on_samples(done, count)
    return pricing.closed(choice, opened)


class _Side:
    """One of the two models, ready to run with other weights than its own.

    place: 0 for A, 1 for B.
    """

    def __init__(
        self,
        exact: onnx.ModelProto,
        model: onnx.ModelProto | None,
        mixtures: Sequence[Mixture],
        place: int,
    ) -> None:
        self.place = place
        numbers = {m.name: (m.left, m.right)[place].numbers for m in mixtures}
        self.models = Models(exact, _weights_in(exact, numbers) if model is None else model)
        self._plain = _plain_graph(exact, numbers) if model is None else None
        self._known: list[_Runnable] = []

    def runnable(self, feeds: Arrays) -> "_Runnable":
        """Return the path that these feeds take through the model, ready to run."""
        if self._plain is not None:
            if not self._known:
                self._known.append(_Runnable(self._plain))
            return self._known[0]
        graph = self.models.way(feeds).graph
        for each in self._known:
            if each.graph is graph:
                return each
        self._known.append(_Runnable(graph))
        return self._known[-1]


class _Runnable:
    """A quantized graph whose weights are inputs."""

    def __init__(self, graph: QuantizedGraph) -> None:
        self.graph = graph
        self.sites = {site.name: site for site in graph.sites}
        self.replay = Replay(graph)

    @cached_property
    def _session(self) -> Session:
        constants = [site.after for site in self.graph.sites if is_constant(site)]
        opened = _open_weights(self.graph.simulated, constants)
        return Session(opened, optimization=Optimization.OFF)

    def record(self, feeds: Arrays) -> Recording:
        """Record a batch."""
        return self.replay.record(self._fed(feeds))

    def run(self, recording: Recording, weights: Arrays) -> dict[str, Array]:
        """Run in simulation with other weights, by name in the float model; the rest its own."""
        given = dict(recording.feeds)
        for site in self.graph.sites:
            if not is_constant(site):
                continue
            before = recording.before[site.name]
            own = before + recording.delta[site.name]
            value = weights.get(site.name)
            given[site.after] = own if value is None else _fitted(value, before.shape)
        takes = {each.name for each in self._session.inputs}
        return self._session.run({n: a for n, a in given.items() if n in takes})

    def _fed(self, feeds: Arrays) -> dict[str, Array]:
        taken = {value.name for value in self.graph.skeleton.graph.input}
        return {name: array for name, array in feeds.items() if name in taken}


def _fitted(value: Array, shape: tuple[int, ...]) -> Array:
    """Return a weight in the skeleton's layout: as it is, or transposed."""
    if value.shape == shape:
        return value
    turned = value.T if value.shape[::-1] == shape else value.reshape(shape)
    return np.ascontiguousarray(turned)


def _open_weights(model: onnx.ModelProto | LightModel, names: Iterable[str]) -> LightModel:
    """Return the model with these constants turned into inputs."""
    light = lighten(model)
    wanted = set(names)
    opened = onnx.ModelProto()
    opened.CopyFrom(light.model)
    graph = opened.graph
    types = {t.name: (t.data_type, list(t.dims)) for t in graph.initializer}
    kept = [tensor for tensor in graph.initializer if tensor.name not in wanted]
    copies = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(copies)
    for node in graph.node:
        renamed = [f"{name} as it was" if name in wanted else name for name in node.output]
        node.output[:] = renamed
    known = {value.name for value in graph.input}
    for name in sorted(wanted - known):
        kind, dims = types.get(name, (onnx.TensorProto.FLOAT, None))
        graph.input.append(onnx.helper.make_tensor_value_info(name, kind, dims))
    left = {name: array for name, array in light.weights.items() if name not in wanted}
    return LightModel(opened, left)


def _weights_in(exact: onnx.ModelProto, numbers: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the float model with other weights."""
    model = onnx.ModelProto()
    model.CopyFrom(exact)
    for tensor in model.graph.initializer:
        if tensor.name in numbers:
            array = numbers[tensor.name].reshape(tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def _plain_graph(exact: onnx.ModelProto, numbers: Mapping[str, Array]) -> QuantizedGraph:
    """Return the float model with other weights as a quantized graph that has no activations."""
    changed = _weights_in(exact, numbers)
    readers = {name: node for node in exact.graph.node for name in node.input}
    sites = tuple(
        Site(
            name=tensor.name,
            kind=SiteKind.WEIGHT,
            operator=readers[tensor.name].op_type if tensor.name in readers else "",
            layer="",
            tensor=tensor.name,
            before=tensor.name,
            after=tensor.name,
            encoding=Encoding("float32"),
        )
        for tensor in exact.graph.initializer
        if tensor.name in numbers
    )
    return QuantizedGraph(changed, changed, exact, sites, ())


@dataclass
class _Swap:
    """What a decision was seen to do, summed over batches; None where it can't be put there."""

    into_left: float | None = None
    out_of_right: float | None = None
    predicted: float = 0.0
    has_prediction: bool = True


@dataclass(frozen=True, eq=False)
class _Seen:
    """One side on one batch."""

    runnable: _Runnable
    recording: Recording
    integral: Integral | None
    target: BatchTarget

    def measured(self, weights: Arrays) -> float:
        """Return the metric with other weights in this side's graph."""
        return self.target.measure(self.runnable.run(self.recording, weights))

    def priced(self, changes: Mapping[str, Array]) -> float | None:
        """Predict the metric's change when sites' errors change by so much; None without account.

        change = new error - old error;  predicted = 2 <G, change> + (M_only(-change) - M(0))
        """
        if self.integral is None:
            return None
        if not changes:
            return 0.0
        negative = {name: np.ascontiguousarray(-change) for name, change in changes.items()}
        linear = sum(
            dot(self.integral.gradients[name], change)
            for name, change in negative.items()
            if name in self.integral.gradients
        )
        outputs = self.runnable.replay.outputs(self.recording, 1.0, only=negative, instead=negative)
        own = self.target.measure(outputs) - self.target.measure(self.recording.start)
        return own - 2 * linear


class _Pricing:
    """Sums over batches."""

    def __init__(self, left: _Side, right: _Side, mixtures: tuple[Mixture, ...]) -> None:
        self.left, self.right = left, right
        self.mixtures = {m.name: m for m in mixtures if m.units}
        self.swaps: dict[str, _Swap] = {}
        self.units: dict[str, Unit] = {}
        self.counts: dict[str, int] = {}
        every: dict[str, list[Unit]] = {}
        for mixture in self.mixtures.values():
            for unit in mixture.units:
                every.setdefault(unit.name, []).append(unit)
        for name, units in every.items():
            self.units[name] = _joined(units)
            self.counts[name] = len(units)
        self.sums = np.zeros(4)  # M(A), M(B) on real kernels, then in simulation
        self.weight = 0.0
        self.samples = 0
        self.entries: dict[str, list[float]] = {}
        self.encodings: dict[str, tuple[str, str]] = {}
        self.notes: list[str] = []

    def choose(self, first: Batch, metric: Metric | None) -> MetricChoice:
        """Return what is compared, chosen on a first batch."""
        exact = self.left.models.run_exact(first.feeds)
        known = self.left.models.exact
        assert known is not None
        choice = choose_metric(known, exact, samples=first.samples, metric=metric)
        for side in (self.left, self.right):
            check_same_outputs(exact, side.models.run_real(first.feeds), choice.outputs)
        return choice

    def add(self, batch: Batch, ruler: Ruler) -> None:
        """Run both sides and every swap on one batch."""
        exact = self.left.models.run_exact(batch.feeds)
        real = [side.models.run_real(batch.feeds) for side in (self.left, self.right)]
        target = ruler.target(batch, exact, real[0])
        one, other = (self._seen(side, batch, target) for side in (self.left, self.right))
        self.sums += [
            *(target.measure(outputs) for outputs in real),
            *(target.measure(seen.recording.simulated) for seen in (one, other)),
        ]
        self.weight += target.weight
        self.samples += batch.samples
        self._name_activations(one, other)
        names = list(self.units)
        for name in names:
            swap = self.swaps.setdefault(name, _Swap())
            if name == _ACTIVATIONS:
                self._swap_graph(swap, one, other)
            else:
                self._swap(swap, name, one, other)
        self._add_activations(one, other)

    def _seen(self, side: _Side, batch: Batch, target: BatchTarget) -> _Seen:
        runnable = side.runnable(batch.feeds)
        recording = runnable.record(batch.feeds)
        try:
            integral = runnable.replay.integrate(
                recording, target.piece, target.feeds, nodes=_NODES
            )
        except NoDerivative as refused:
            self._note(f"Nothing is predicted: {refused.what}.")
            return _Seen(runnable, recording, None, target)
        return _Seen(runnable, recording, integral, target)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _mixed(self, taken: Iterable[str], own: int) -> dict[str, Array]:
        """Return the weights that differ from a side's own when these units come from B."""
        taken = set(taken)
        found = {}
        for name, mixture in self.mixtures.items():
            names = {unit.name for unit in mixture.units}
            theirs = names & taken
            if (theirs != names) if own else theirs:
                found[name] = mixture.numbers(theirs)
        return found

    def _swap(self, swap: _Swap, name: str, one: _Seen, other: _Seen) -> None:
        """Put B's choice into A, and A's choice back into B."""
        everything = set(self.units) - {_ACTIVATIONS}
        guesses: list[float | None] = []
        for seen, own, taken in ((one, 0, {name}), (other, 1, everything - {name})):
            weights = self._mixed(taken, own)
            if not weights.keys() & seen.runnable.sites.keys():
                guesses.append(None)  # the weight is no site of this graph
                continue
            moved = seen.measured(weights) - seen.target.measure(seen.recording.simulated)
            guesses.append(seen.priced(_changes(seen, weights)))
            if own:
                swap.out_of_right = (swap.out_of_right or 0.0) - moved
            else:
                swap.into_left = (swap.into_left or 0.0) + moved
        self._guess(swap, guesses[0], None if guesses[1] is None else -guesses[1])

    @staticmethod
    def _guess(swap: _Swap, *guesses: float | None) -> None:
        known = [guess for guess in guesses if guess is not None]
        if known:
            swap.predicted += sum(known) / len(known)
        else:
            swap.has_prediction = False

    def _swap_graph(self, swap: _Swap, one: _Seen, other: _Seen) -> None:
        """Put A's weights into B's graph, and B's into A's."""
        theirs, ours = self._mixed((), 1), self._mixed(set(self.units), 0)
        ends = [seen.target.measure(seen.recording.simulated) for seen in (one, other)]
        swap.into_left = (swap.into_left or 0.0) + other.measured(theirs) - ends[0]
        swap.out_of_right = (swap.out_of_right or 0.0) + ends[1] - one.measured(ours)
        guesses = []
        for seen, counterpart, sign in ((one, other, 1.0), (other, one, -1.0)):
            mine, yours = _acting(seen.runnable), _acting(counterpart.runnable)
            if set(yours) - set(mine):
                continue  # a site that isn't there can't be priced in this graph
            changes = {}
            for name, site in mine.items():
                if name not in yours or not _alike(site, yours[name]):
                    before = seen.recording.before[name]
                    after = _encoded(before, yours[name]) if name in yours else before
                    changes[name] = (after - before) - seen.recording.delta[name]
            guess = seen.priced(changes)
            if guess is not None:
                guesses.append(sign * guess)
        self._guess(swap, *guesses)

    def _name_activations(self, one: _Seen, other: _Seen) -> None:
        """Make the difference of the graphs a unit, where there is one."""
        mine, yours = _acting(one.runnable), _acting(other.runnable)
        shared = [n for n in mine if n in yours]
        changed = [n for n in shared if not _alike(mine[n], yours[n])]
        only = [len(mine) - len(shared), len(yours) - len(shared)]
        if _ACTIVATIONS in self.units or not (changed or any(only)):
            return
        if changed and not any(only):
            said = [_activation_words(next(sites[n] for n in changed)) for sites in (mine, yours)]
            if said[0] == said[1]:
                said = [f"{said[0]}, on its own scales"] * 2
        else:
            said = [_kinds(sites) for sites in (mine, yours)]
        self.units[_ACTIVATIONS] = Unit(_ACTIVATIONS, *said)
        self.counts[_ACTIVATIONS] = 0

    def _add_activations(self, one: _Seen, other: _Seen) -> None:
        """Sum what each activation's error moves the output by, of both accounts."""
        if one.integral is None or other.integral is None:
            return
        sides = [_acting(seen.runnable) for seen in (one, other)]
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            sites = [side.get(name) for side in sides]
            if sites[0] is not None and sites[1] is not None and _alike(sites[0], sites[1]):
                continue
            amounts = self.entries.setdefault(name, [0.0, 0.0])
            for k, seen in enumerate((one, other)):
                if seen.integral is not None:
                    amounts[k] += seen.integral.entries.get(name, 0.0)
            said = ["float" if site is None else _activation_words(site) for site in sites]
            self.encodings[name] = (said[0], said[1])

    def closed(self, choice: MetricChoice, data: Data) -> Prices:
        """Return the prices of everything that was added."""
        weight, harm = self.weight or 1.0, choice.metric.harm
        real_left, real_right, left, right = (float(v) for v in self.sums / weight)
        difference = real_right - real_left
        prices = []
        for name, swap in self.swaps.items():
            swaps = [swap.into_left, swap.out_of_right]
            into, out = (None if each is None else each / weight * harm for each in swaps)
            done = [each for each in (into, out) if each is not None]
            measured = sum(done) / len(done) if done else 0.0
            prices.append(
                Price(
                    self.units[name],
                    self.counts[name],
                    swap.predicted / weight * harm if swap.has_prediction else None,
                    measured,
                    into,
                    out,
                    measured / (difference * harm) if difference else 0.0,
                )
            )
        prices.sort(key=lambda price: -abs(price.measured))
        kernel = ((real_right - right) - (real_left - left)) * harm
        together = (right - left) * harm - sum(price.measured for price in prices)
        activations = [
            ActivationPrice(name, *self.encodings[name], (after - before) / weight * harm)
            for name, (before, after) in self.entries.items()
        ]
        activations.sort(key=lambda each: -abs(each.amount))
        return Prices(
            choice.metric,
            choice.outputs,
            real_left,
            real_right,
            tuple(prices),
            together,
            kernel,
            tuple(activations),
            self.samples,
            data.description,
            data.is_random,
            (*dict.fromkeys((*self.left.models.notes, *self.right.models.notes)), *self.notes),
        )


def _joined(units: Sequence[Unit]) -> Unit:
    """Return one unit for all weights, with the words of the commonest two kinds."""
    said = []
    for side in ("left", "right"):
        words = [word for word, _ in Counter(getattr(u, side) for u in units).most_common(2)]
        start, _, last = words[0].rpartition(" ")
        # "per axis 0 or 1": what both begin with is said once.
        rest = [word.removeprefix(f"{start} ") if last else word for word in words[1:]]
        said.append(" or ".join([words[0], *rest]))
    return Unit(units[0].name, said[0], said[1])


def _changes(seen: _Seen, weights: Arrays) -> dict[str, Array]:
    """Return by how much the errors of weights change."""
    found = {}
    for name, value in weights.items():
        if name in seen.runnable.sites:
            before = seen.recording.before[name]
            error = _fitted(value, before.shape) - before
            found[name] = error - seen.recording.delta[name]
    return found


def _acting(runnable: _Runnable) -> dict[str, Site]:
    """Return the sites that are chosen by the graph, not by a weight: all but weights."""
    return {n: site for n, site in runnable.sites.items() if site.kind is not SiteKind.WEIGHT}


def _alike(one: Site, other: Site) -> bool:
    """Say whether two sites represent their tensor alike."""
    a, b = one.encoding, other.encoding
    if (a.number_format, a.axis, a.block_size) != (b.number_format, b.axis, b.block_size):
        return False
    if is_constant(one):  # a bias: its scale follows from its neighbours'
        return True
    return _same(a.scale, b.scale) and _same(a.zero_point, b.zero_point)


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return (one is None or not np.any(one)) and (other is None or not np.any(other))
    return bool(np.array_equal(one, other))


def _encoded(before: Array, site: Site) -> Array:
    """Return an activation as another site of it would leave it."""
    if is_constant(site):
        return before
    if not site.encoding.is_dynamic:
        try:
            return refolded(before, site.encoding)
        except (KeyError, FoldmarkError):
            return before
    rule = rules.ONNXRUNTIME_DYNAMIC_UINT8
    assert isinstance(rule, Rule)
    group = quantize_array(before.reshape(1, -1), (1, before.size), rule)
    numbers = dequantize_group(group, rule, block=(1, before.size))
    return np.asarray(numbers, np.float32).reshape(before.shape)


def _activation_words(site: Site) -> str:
    encoding = site.encoding
    if encoding.is_dynamic:
        return f"{encoding.number_format}, scale from the data"
    if encoding.scale is None or encoding.scale.size != 1:
        return encoding.number_format
    zero = 0 if encoding.zero_point is None else int(encoding.zero_point.reshape(-1)[0])
    scale = float(encoding.scale.reshape(-1)[0])
    return f"{encoding.number_format}, scale {scale:.4g}, zero point {zero}"


def _kinds(sites: Mapping[str, Site]) -> str:
    """Say in words what a graph quantizes beside its weights."""
    counts: dict[str, int] = {}
    for site in sites.values():
        form = site.encoding.number_format
        kind = f"dynamic {form}" if site.encoding.is_dynamic else f"static {form}"
        counts[kind if not is_constant(site) else f"{form} biases"] = (
            counts.get(kind if not is_constant(site) else f"{form} biases", 0) + 1
        )
    return ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "float"
