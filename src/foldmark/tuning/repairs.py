"""Repairs that the account of a trial suggests, those that save most per millisecond first."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from foldmark.ledger.entries import Entry
from foldmark.recipes.recipe import Mode, Override, Recipe, TensorRange
from foldmark.report.explain import explain
from foldmark.runtimes.batches import Data
from foldmark.surgery.editor import Editor, consumers, node_name
from foldmark.surgery.products import Product, find_product
from foldmark.tuning.trial import Bench, Trial

__all__ = [
    "Repair",
    "escaped",
    "explained_samples",
    "find_repairs",
    "repaired",
    "touching",
]

# Samples that the account of a trial is taken over: fewer of large ones, whose every value's
# derivative costs time.
_EXPLAINED, _FEWEST, _VALUES = 32, 4, 1 << 20
_FREE = 1e-3  # milliseconds; what a repair without cost is divided by


@dataclass(frozen=True)
class Repair:
    """One change of a recipe.

    Attributes:
        words: what is done, to what.
        blame: whose error it takes away.
        saving: what it saves of the measured change by the account, as a part of it.
        milliseconds: what it costs in every run, estimated from the float model's times.
        change: the override or range that makes it.
        products: the operators that it touches.
    """

    words: str
    blame: str
    saving: float
    milliseconds: float
    change: Override | TensorRange
    products: frozenset[str] = frozenset()

    @property
    def worth(self) -> float:
        """Saving per millisecond."""
        return self.saving / max(self.milliseconds, _FREE)


def find_repairs(bench: Bench, trial: Trial, model: onnx.ModelProto) -> tuple[Repair, ...]:
    """Return what the account of a trial suggests, most saving per millisecond first.

    Another range costs nothing. An operator left in float costs what integers gained there:
    its time in float, less that time divided by the trial's speed. Codes of 16 bits are not
    among them: ONNX Runtime has no kernel for them, so they cost more than float.
    """
    count = explained_samples(bench.data)
    limited = replace(bench.data, limit=min(bench.data.limit or count, count))
    if bench.score is not None:
        limited = limited.without_labels()  # they may be anything that the score reads
    account = explain(str(bench.float_model), trial.model, limited)
    harm = account.metric.harm
    total = sum(harm * entry.amount for entry in account.entries if harm * entry.amount > 0)
    if total <= 0:
        return ()
    found: list[Repair] = []
    near = touching(model)
    if trial.recipe.mode is Mode.STATIC:
        best: dict[str, Repair] = {}
        for fix in account.fixes:
            if fix.range is None or fix.predicted <= 0:
                continue
            name = fix.sites[0]
            low, high = min(fix.range[0], 0.0), max(fix.range[1], 0.0)
            repair = Repair(
                f"{name}: {low:.4g} to {high:.4g}",
                name,
                fix.predicted / total,
                0.0,
                TensorRange(name, low, high),
                frozenset(near[name]),
            )
            if name not in best or repair.saving > best[name].saving:
                best[name] = repair
        found += best.values()
    damage = _damage(account.entries, harm, near)
    found += _in_float(bench, trial, model, damage, total)
    return tuple(sorted(found, key=lambda repair: -repair.worth))


def explained_samples(data: Data) -> int:
    """Return how many samples an account is taken over: 32, or 4 to 32 that hold 2^20 values."""
    first = next(iter(data.batches(1)))
    values = sum(array.size for array in first.feeds.values())
    return min(_EXPLAINED, max(_FEWEST, _VALUES // max(1, values)))


def repaired(recipe: Recipe, repairs: tuple[Repair, ...]) -> Recipe:
    """Return the recipe with the repairs' changes.

    A tensor that only operators left in float touch needs no range any more.
    """
    overrides = [each.change for each in repairs if isinstance(each.change, Override)]
    in_float = frozenset[str]().union(
        *(each.products for each in repairs if isinstance(each.change, Override))
    )
    ranges = {each.tensor: each for each in recipe.ranges}
    for each in repairs:
        if isinstance(each.change, TensorRange) and not (
            each.products and each.products <= in_float
        ):
            ranges[each.change.tensor] = each.change
    return replace(recipe, overrides=(*recipe.overrides, *overrides), ranges=tuple(ranges.values()))


def _damage(
    entries: Sequence[Entry], harm: float, nodes: Mapping[str, list[str]]
) -> dict[str, float]:
    """Return what the errors of each product's tensors did, by the product's name."""
    damage: dict[str, float] = defaultdict(float)
    for entry in entries:
        readers = nodes.get(_own_name(entry.site.name, nodes), [])
        for name in readers:
            damage[name] += harm * entry.amount / len(readers)
    return damage


def _in_float(
    bench: Bench, trial: Trial, model: onnx.ModelProto, damage: Mapping[str, float], total: float
) -> list[Repair]:
    nodes = bench.executed(model, bench.float_model.parent, runs=2)
    times = {each.name: each.seconds for each in nodes}
    usual = sorted(times.values())[len(times) // 2] if times else 1e-6
    lost = max(0.0, 1 - 1 / trial.speed.value)
    return [
        Repair(
            f"{name} in float",
            name,
            amount / total,
            1e3 * times.get(name, usual) * lost,
            Override(f"^{escaped(name)}$", keep_float=True),
            frozenset({name}),
        )
        for name, amount in damage.items()
        if amount > 0
    ]


# What quantizing adds to the names of the float model's tensors.
_SUFFIXES = ("_DequantizeLinear_Output", "_dequantized", "_quantized", "_smoothed", "_corrected")


def _own_name(name: str, known: Mapping[str, object]) -> str:
    """Return the float model's name of a tensor that quantizing renamed."""
    while name not in known:
        shorter = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)
        if shorter == name:
            break
        name = shorter
    return name


def touching(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return the names of the products that read or make each tensor, weights and biases too.

    What follows a product alone, such as its activation function, makes its result.
    """
    editor = Editor(model)
    near: dict[str, list[str]] = defaultdict(list)
    for scope in editor.scopes():
        readers = consumers(scope.graph)
        for node in scope.graph.node:
            if isinstance(find_product(node, scope), Product):
                names = [*node.input, *node.output]
                followers = readers[node.output[0]]
                if len(followers) == 1:
                    names += followers[0].output
                for name in names:
                    near[name].append(node_name(node))
    return near


def escaped(name: str) -> str:
    """Return a pattern that matches a node's name and nothing else."""
    return "".join(c if c.isalnum() or c in "_/" else f"\\{c}" for c in name)
