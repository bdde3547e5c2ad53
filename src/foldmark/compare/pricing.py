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

import numpy as np
import onnx

from foldmark.compare.acting import acting, activation_words, alike, encoded, kinds
from foldmark.compare.mixing import Mixture, Unit
from foldmark.compare.prices import ActivationPrice, Price, Prices
from foldmark.compare.runnable import Runnable, Side, fitted
from foldmark.errors import NoDerivative
from foldmark.formats.values import Array
from foldmark.ledger.choice import MetricChoice, check_same_outputs, choose_metric
from foldmark.ledger.integral import Integral
from foldmark.ledger.metrics import Metric
from foldmark.ledger.models import is_constant
from foldmark.ledger.recording import Recording, dot
from foldmark.ledger.targets import BatchTarget, Ruler
from foldmark.runtimes.batches import Batch, Data, DataLike, open_data

__all__ = ["price_decisions"]

_NODES = 4
_LARGEST_BATCH = 32
_ACTIVATIONS = "activations"
# So many activations are swapped one by one: those whose accounts differ most.
_SWAPPED = 8
Arrays = Mapping[str, Array]


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
    sides = [Side(exact, model, mixtures, k) for k, model in enumerate((left, right))]
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


@dataclass
class _Swap:
    """What a decision was seen to do, summed over batches; None where it can't be put there."""

    into_left: float | None = None
    out_of_right: float | None = None
    predicted: float = 0.0
    has_prediction: bool = True

    def means(self, weight: float) -> tuple[float | None, float | None, float, float | None]:
        """Return into A, out of B, the mean of both, and what was predicted of it, each a mean.

        Args:
            weight: what a sum over samples is divided by, with the sign of the metric.
        """
        each = [
            None if one is None else one / weight for one in (self.into_left, self.out_of_right)
        ]
        done = [one for one in each if one is not None]
        measured = sum(done) / len(done) if done else 0.0
        return each[0], each[1], measured, self.predicted / weight if self.has_prediction else None


@dataclass(frozen=True, eq=False)
class _Seen:
    """One side on one batch."""

    runnable: Runnable
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

    def __init__(self, left: Side, right: Side, mixtures: tuple[Mixture, ...]) -> None:
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
        self.singles: dict[str, _Swap] = {}
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
        self._swap_activations(one, other)

    def _seen(self, side: Side, batch: Batch, target: BatchTarget) -> _Seen:
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
            mine, yours = acting(seen.runnable), acting(counterpart.runnable)
            if set(yours) - set(mine):
                continue  # a site that isn't there can't be priced in this graph
            changes = {}
            for name, site in mine.items():
                if name not in yours or not alike(site, yours[name]):
                    before = seen.recording.before[name]
                    after = encoded(before, yours[name]) if name in yours else before
                    changes[name] = (after - before) - seen.recording.delta[name]
            guess = seen.priced(changes)
            if guess is not None:
                guesses.append(sign * guess)
        self._guess(swap, *guesses)

    def _name_activations(self, one: _Seen, other: _Seen) -> None:
        """Make the difference of the graphs a unit, where there is one."""
        mine, yours = acting(one.runnable), acting(other.runnable)
        shared = [n for n in mine if n in yours]
        changed = [n for n in shared if not alike(mine[n], yours[n])]
        only = [len(mine) - len(shared), len(yours) - len(shared)]
        if _ACTIVATIONS in self.units or not (changed or any(only)):
            return
        if changed and not any(only):
            said = [activation_words(next(sites[n] for n in changed)) for sites in (mine, yours)]
            if said[0] == said[1]:
                said = [f"{said[0]}, on its own scales"] * 2
        else:
            said = [kinds(sites) for sites in (mine, yours)]
        self.units[_ACTIVATIONS] = Unit(_ACTIVATIONS, *said)
        self.counts[_ACTIVATIONS] = 0

    def _add_activations(self, one: _Seen, other: _Seen) -> None:
        """Sum what each activation's error moves the output by, of both accounts."""
        if one.integral is None or other.integral is None:
            return
        sides = [acting(seen.runnable) for seen in (one, other)]
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            sites = [side.get(name) for side in sides]
            if sites[0] is not None and sites[1] is not None and alike(sites[0], sites[1]):
                continue
            amounts = self.entries.setdefault(name, [0.0, 0.0])
            for k, seen in enumerate((one, other)):
                if seen.integral is not None:
                    amounts[k] += seen.integral.entries.get(name, 0.0)
            said = ["float" if site is None else activation_words(site) for site in sites]
            self.encodings[name] = (said[0], said[1])

    def _swap_activations(self, one: _Seen, other: _Seen) -> None:
        """Swap the costliest activations one by one, and all else as it is on either side."""
        sides = [acting(seen.runnable) for seen in (one, other)]
        if not self.singles:
            differ = [
                n
                for n, site in sides[0].items()
                if n in sides[1] and not is_constant(site) and not alike(site, sides[1][n])
            ]
            cost = {n: abs(b - a) for n, (a, b) in self.entries.items()}
            most = sorted(differ, key=lambda n: -cost.get(n, 0.0))[:_SWAPPED]
            self.singles = {name: _Swap() for name in most}
        for name, swap in self.singles.items():
            if not all(name in side for side in sides):
                continue  # these samples take a path without it
            guesses: list[float | None] = []
            for seen, theirs in ((one, sides[1]), (other, sides[0])):
                before = seen.recording.before[name]
                value = encoded(before, theirs[name])
                outputs = seen.runnable.run_with(seen.recording, name, value)
                own = seen.target.measure(seen.recording.simulated)
                moved = seen.target.measure(outputs) - own
                guesses.append(seen.priced({name: value - before - seen.recording.delta[name]}))
                if seen is one:
                    swap.into_left = (swap.into_left or 0.0) + moved
                else:
                    swap.out_of_right = (swap.out_of_right or 0.0) - moved
            self._guess(swap, guesses[0], None if guesses[1] is None else -guesses[1])

    def closed(self, choice: MetricChoice, data: Data) -> Prices:
        """Return the prices of everything that was added."""
        weight, harm = self.weight or 1.0, choice.metric.harm
        real_left, real_right, left, right = (float(v) for v in self.sums / weight)
        difference = real_right - real_left
        prices = []
        for name, swap in self.swaps.items():
            into, out, measured, predicted = swap.means(weight / harm)
            prices.append(
                Price(
                    self.units[name],
                    self.counts[name],
                    predicted,
                    measured,
                    into,
                    out,
                    measured / (difference * harm) if difference else 0.0,
                )
            )
        prices.sort(key=lambda price: -abs(price.measured))
        kernel = ((real_right - right) - (real_left - left)) * harm
        together = (right - left) * harm - sum(price.measured for price in prices)
        activations = []
        for name, (before, after) in self.entries.items():
            single = self.singles.get(name)
            guess: float | None = None
            run: float | None = None
            if single is not None:
                _, _, run, guess = single.means(weight / harm)
            activations.append(
                ActivationPrice(
                    name,
                    *self.encodings[name],
                    (after - before) / weight * harm,
                    guess,
                    run,
                )
            )
        activations.sort(key=lambda each: -abs(each.worth))
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
            error = fitted(value, before.shape) - before
            found[name] = error - seen.recording.delta[name]
    return found
