"""Operators that integers make slower: by the profiler's times, beside those of the float model."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from foldmark.formats.onnx_file import read_model
from foldmark.recipes.recipe import Override, Recipe
from foldmark.runtimes.profile import NodeRun, all_nodes
from foldmark.surgery.editor import Editor
from foldmark.surgery.products import Product, find_product
from foldmark.tuning.costs import owner
from foldmark.tuning.reading import only, touching
from foldmark.tuning.repairs import Repair, repaired
from foldmark.tuning.trial import Bench, Trial

__all__ = ["Comparison", "compare_products", "compared", "in_float"]

_RUNS = 20


@dataclass(frozen=True)
class Comparison:
    """Products on integers beside the same in float.

    Attributes:
        compared: how many products' times could be compared.
        lost: product -> seconds that it takes longer on integers, of those that do.
    """

    compared: int
    lost: dict[str, float]


def compare_products(bench: Bench, trial: Trial, model: onnx.ModelProto) -> Comparison:
    """Compare the times of a trial's quantized products with those of the float model."""
    path = Path(trial.model)
    made = read_model(path)
    real, other = (
        bench.executed(each, folder, runs=_RUNS)
        for each, folder in ((model, bench.float_model.parent), (made, path.parent))
    )
    return compared(model, made, real, other)


def compared(
    model: onnx.ModelProto, made: onnx.ModelProto, real: Sequence[NodeRun], other: Sequence[NodeRun]
) -> Comparison:
    """Compare products by what was executed of the float model and of the quantized one.

    To a product's time that of the conversions around it is added; one that several products
    read is shared out among them. Products that one of the two did not run, or that ONNX Runtime
    named anew, are left out.

    Args:
        model: the float model.
        made: the quantized one.
        real: what was executed of the float model.
        other: what was executed of the quantized one.
    """
    before = {each.name: each.seconds for each in real}
    tensors = touching(model)
    products = {name for names in tensors.values() for name in names}
    owners = {**tensors, **{name: [name] for name in products}}
    unchanged = {node.name for node in all_nodes(model)} - products
    after: dict[str, float] = defaultdict(float)
    for each in other:
        readers = owners.get(owner(each.name, owners), [])
        if each.name not in unchanged:
            for name in readers:
                after[name] += each.seconds / len(readers)
    in_both = (after.keys() & before.keys()) - _in_float(made)
    lost = {n: after[n] - before[n] for n in sorted(in_both) if after[n] > before[n]}
    return Comparison(len(in_both), lost)


def _in_float(model: onnx.ModelProto) -> set[str]:
    """Return the products of a quantized model that read a float weight as it is stored."""
    scopes = Editor(model).scopes()
    found = [find_product(node, scope) for scope in scopes for node in scope.graph.node]
    return {each.name for each in found if isinstance(each, Product)}


def in_float(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with some products left in float."""
    repairs = tuple(
        Repair(
            f"{name} in float",
            name,
            0.0,
            0.0,
            Override(only(name), keep_float=True),
            frozenset({name}),
        )
        for name in names
    )
    return replace(repaired(recipe, repairs), name=f"{len(names)} in float")
