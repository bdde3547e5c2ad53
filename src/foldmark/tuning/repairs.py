"""Repairs that the account of a trial suggests, those that save most per millisecond first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx

from foldmark.ledger.entries import Entry
from foldmark.ledger.fixes import Fix
from foldmark.recipes.recipe import Mode, Override, Recipe, TensorCodes, TensorRange
from foldmark.report.explain import explain
from foldmark.runtimes.batches import Data
from foldmark.surgery.activations import ActivationCodes
from foldmark.tuning.costs import Costs, measure_costs
from foldmark.tuning.reading import Reading, only, own_name
from foldmark.tuning.trial import Bench, Trial

__all__ = ["Repair", "explained_samples", "find_repairs", "repaired"]

# Samples that the account of a trial is taken over: fewer of large ones, whose every value's
# derivative costs time.
_EXPLAINED, _FEWEST, _VALUES = 32, 4, 1 << 20
_LEAST = 0.01  # of the largest saving: what saves less is not worth a trial
_FREE = 1e-3  # milliseconds; what a repair without cost is divided by


@dataclass(frozen=True)
class Repair:
    """One change of a recipe.

    Attributes:
        words: what is done, to what.
        blame: whose error it takes away.
        saving: what it saves of the measured change by the account, as a part of it.
        milliseconds: what it costs in every run, estimated from the float model's times.
        change: the override, range or codes that make it.
        products: the operators that it touches.
    """

    words: str
    blame: str
    saving: float
    milliseconds: float
    change: Override | TensorRange | TensorCodes
    products: frozenset[str] = frozenset()

    @property
    def worth(self) -> float:
        """Saving per millisecond."""
        return self.saving / max(self.milliseconds, _FREE)


def find_repairs(
    bench: Bench,
    trial: Trial,
    model: onnx.ModelProto,
    on_progress: Callable[[float], None] | None = None,
) -> tuple[Repair, ...]:
    """Return what the account of a trial suggests, most saving per millisecond first.

    Another range costs nothing. An operator left in float costs what integers gained there:
    its time in float, less that time divided by the trial's speed. Codes of 16 bits cost that
    of every operator around the tensor, and the conversions: ONNX Runtime has no kernel for them.
    """
    count = explained_samples(bench.data)
    limited = replace(bench.data, limit=min(bench.data.limit or count, count))
    if bench.score is not None:
        limited = limited.without_labels()  # they may be anything that the score reads
    account = explain(str(bench.float_model), trial.model, limited, on_progress=on_progress)
    harm = account.metric.harm
    total = sum(harm * entry.amount for entry in account.entries if harm * entry.amount > 0)
    if total <= 0:
        return ()
    reading = Reading(model, trial.recipe)
    costs = measure_costs(bench, trial, model, reading)
    found = _in_float(account.entries, harm, reading, costs, total)
    if trial.recipe.mode is Mode.STATIC:
        found += _in_activations(account.fixes, reading, costs, total)
    least = _LEAST * max((repair.saving for repair in found), default=0.0)
    found = [repair for repair in found if repair.saving >= least]
    return tuple(sorted(found, key=lambda repair: -repair.worth))


def explained_samples(data: Data) -> int:
    """Return how many samples an account is taken over: 32, or 4 to 32 that hold 2^20 values."""
    first = next(iter(data.batches(1)))
    values = sum(array.size for array in first.feeds.values())
    return min(_EXPLAINED, max(_FEWEST, _VALUES // max(1, values)))


def repaired(recipe: Recipe, repairs: tuple[Repair, ...]) -> Recipe:
    """Return the recipe with the repairs' changes.

    A tensor that only operators left in float touch needs neither range nor codes any more, and
    one that gets 16 bits no narrower range.
    """
    overrides = [each.change for each in repairs if isinstance(each.change, Override)]
    in_float = frozenset[str]().union(
        *(each.products for each in repairs if isinstance(each.change, Override))
    )
    needed = [each for each in repairs if not (each.products and each.products <= in_float)]
    codes = {each.tensor: each for each in recipe.codes}
    codes |= {e.change.tensor: e.change for e in needed if isinstance(e.change, TensorCodes)}
    ranges = {each.tensor: each for each in recipe.ranges}
    ranges |= {e.change.tensor: e.change for e in needed if isinstance(e.change, TensorRange)}
    return replace(
        recipe,
        overrides=(*recipe.overrides, *overrides),
        ranges=tuple(each for name, each in ranges.items() if name not in codes),
        codes=tuple(codes.values()),
    )


def _in_float(
    entries: Sequence[Entry], harm: float, reading: Reading, costs: Costs, total: float
) -> list[Repair]:
    """Return the products left in float, each with what it takes away by itself.

    A weight's error goes with the product that reads it. An activation's goes as far as its
    codes lose readers: what an integer kernel makes is read from its codes by everyone, so that
    one reader in float takes nothing away.
    """
    before, found = reading.readers(), []
    for name in reading.products():
        after = reading.readers(in_float=name)
        saving = 0.0
        for entry in entries:
            tensor = own_name(entry.site.name, reading.near)
            reads = before.get(tensor)
            if reads:
                part = 1 - len(reads & after.get(tensor, set())) / len(reads)
            else:
                owners = reading.near.get(tensor, [])
                part = owners.count(name) / len(owners) if owners else 0.0
            saving += part * harm * entry.amount
        if saving > 0:
            found.append(
                Repair(
                    f"{name} in float",
                    name,
                    saving / total,
                    costs.in_float(name),
                    Override(only(name), keep_float=True),
                    frozenset({name}),
                )
            )
    return found


def _in_activations(
    fixes: Sequence[Fix], reading: Reading, costs: Costs, total: float
) -> list[Repair]:
    """Return the best other range of each activation that has one, and its 16-bit codes."""
    best: dict[tuple[str, bool], Repair] = {}
    for fix in fixes:
        if fix.predicted <= 0 or not (fix.range or fix.codes):
            continue
        name = fix.sites[0]
        own = own_name(name, reading.near)
        if not reading.has_own(own):
            continue
        change: TensorRange | TensorCodes
        if fix.range is not None:
            low, high = min(fix.range[0], 0.0), max(fix.range[1], 0.0)
            change, words, cost = TensorRange(name, low, high), f"{low:.4g} to {high:.4g}", 0.0
        else:
            change = TensorCodes(name, ActivationCodes(fix.codes))
            words, cost = fix.codes, costs.wide(own, reading)
        near = frozenset(reading.near[own])
        repair = Repair(f"{name}: {words}", name, fix.predicted / total, cost, change, near)
        key = (name, fix.range is not None)
        if key not in best or repair.saving > best[key].saving:
            best[key] = repair
    return list(best.values())
