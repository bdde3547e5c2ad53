"""The ladder that people climb by hand: dynamic, static, other ranges, methods, repairs."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from foldmark.calibrate.observers import Method
from foldmark.errors import FoldmarkError, NotSupported
from foldmark.formats.onnx_file import read_model
from foldmark.recipes.recipe import MethodName, Mode, Override, Recipe
from foldmark.recipes.recipe_file import BUILT_IN, recipe_text
from foldmark.report.explain import explain
from foldmark.runtimes.profile import execute
from foldmark.surgery.editor import Editor, node_name
from foldmark.surgery.products import Product, find_product
from foldmark.tuning.trial import Bench, Trial

__all__ = ["Goal", "Tuning", "tune"]

_EXPLAINED = 64  # samples that the account of a trial is taken over
_LARGEST_REPAIR = 32


@dataclass(frozen=True)
class Goal:
    """When to stop.

    Attributes:
        max_drop: the score may fall by so much.
        min_speedup: at least so many times faster, 0 for any speed.
    """

    max_drop: float
    min_speedup: float = 0.0

    def holds(self, trial: Trial) -> bool:
        """Return whether a trial reaches it."""
        # A drop of one sample in 200 is 0.005 to a person, a bit more to a float.
        return trial.drop <= self.max_drop + 1e-9 and trial.speed.value >= self.min_speedup


@dataclass(frozen=True)
class Tuning:
    """What the ladder led to.

    Attributes:
        trials: every trial in order.
        best: the fastest that reaches the goal, else the one that comes nearest.
        reached: whether the goal holds.
        blame: what holds the best trial back, worst first, when the goal is not reached.
    """

    trials: tuple[Trial, ...]
    best: Trial
    reached: bool
    blame: tuple[str, ...]


def tune(
    bench: Bench, goal: Goal, output: Path, report: Callable[[Trial], None] | None = None
) -> Tuning:
    """Climb until the goal holds; write the best model and the recipe that makes it.

    The cheap rungs first: dynamic and static, both, so that the faster of two good ones is
    taken; then other ranges, then methods, each kept when it helps; then the operators that the
    account names are left in float, those with most damage per millisecond first.

    Raises NotSupported when no recipe could be followed at all.
    """
    climb = _Climb(bench, goal, report)
    model = read_model(bench.float_model)
    for step, recipe in _first_rungs(model):
        climb.try_recipe(step, recipe)
    if not climb.reached():
        for step, change in _improvements(model):
            climb.improve(step, change)
            if climb.reached():
                break
    blame: tuple[str, ...] = ()
    if not climb.reached() and climb.best() is not None:
        blame = _repair(climb, model)
    best = climb.best()
    if best is None:
        failures = "; ".join(dict.fromkeys(trial.failure for trial in climb.trials))
        raise NotSupported("no recipe could be followed", got=failures)
    _deliver(best, output)
    return Tuning(tuple(climb.trials), best, climb.reached(), () if climb.reached() else blame)


class _Climb:
    """The trials so far and the best of them."""

    def __init__(self, bench: Bench, goal: Goal, report: Callable[[Trial], None] | None) -> None:
        self.bench, self.goal, self.trials = bench, goal, list[Trial]()
        self._report = report

    def best(self) -> Trial | None:
        """The fastest trial that reaches the goal, else the one with the least drop."""
        made = [trial for trial in self.trials if trial.model]
        good = [trial for trial in made if self.goal.holds(trial)]
        if good:
            return max(good, key=lambda trial: trial.speed.value)
        fast = [trial for trial in made if trial.speed.value >= self.goal.min_speedup]
        return min(fast or made, key=lambda trial: trial.drop, default=None)

    def reached(self) -> bool:
        best = self.best()
        return best is not None and self.goal.holds(best)

    def try_recipe(self, step: str, recipe: Recipe) -> Trial:
        trial = self.bench.run(step, recipe)
        self.trials.append(trial)
        if self._report is not None:
            self._report(trial)
        return trial

    def improve(self, step: str, change: Callable[[Recipe], Recipe | None]) -> None:
        """Try a change of the best recipe; the best stays when it does not help."""
        best = self.best()
        changed = change(best.recipe) if best is not None else None
        if changed is not None:
            self.try_recipe(step, replace(changed, name=step))


def _first_rungs(model: onnx.ModelProto) -> Iterator[tuple[str, Recipe]]:
    kinds = {node.op_type for node in model.graph.node}
    branches = any(attribute.HasField("g") for n in model.graph.node for attribute in n.attribute)
    if kinds & {"MatMul", "Gemm"} or branches:
        yield "dynamic", BUILT_IN["dynamic"]
    if kinds & {"MatMul", "Gemm", "Conv", "ConvTranspose"}:
        yield "static", BUILT_IN["static"]


def _improvements(
    model: onnx.ModelProto,
) -> Iterator[tuple[str, Callable[[Recipe], Recipe | None]]]:
    def observed(method: Method) -> Callable[[Recipe], Recipe | None]:
        def change(recipe: Recipe) -> Recipe | None:
            if recipe.mode is not Mode.STATIC:
                return None
            return replace(recipe, observer=replace(recipe.observer, method=method))

        return change

    def with_method(name: MethodName) -> Callable[[Recipe], Recipe | None]:
        return lambda recipe: replace(recipe, methods=(*recipe.methods, name))

    yield "ranges by mse", observed(Method.MSE)
    yield "ranges by percentile", observed(Method.PERCENTILE)
    if any(node.op_type in ("MatMul", "Gemm") for node in model.graph.node):
        yield "smoothing", with_method(MethodName.SMOOTHQUANT)
    yield "bias correction", with_method(MethodName.BIAS_CORRECTION)
    yield "weights clipped by mse", with_method(MethodName.MSE_CLIPPING)


def _repair(climb: _Climb, model: onnx.ModelProto) -> tuple[str, ...]:
    """Leave ever more of the blamed operators in float; return who is to blame."""
    best = climb.best()
    assert best is not None
    try:
        ranked = _ranked(climb.bench, best, model)
    except FoldmarkError as error:
        return (f"the account could not be taken: {error.sentence()}",)
    count = 1
    while ranked and not climb.reached() and count <= _LARGEST_REPAIR:
        names = ranked[:count]
        exact = [Override(f"^{_escaped(name)}$", keep_float=True) for name in names]
        recipe = replace(
            best.recipe,
            name=f"{len(names)} in float",
            overrides=(*best.recipe.overrides, *exact),
        )
        climb.try_recipe(f"{len(names)} operators in float", recipe)
        if len(names) == len(ranked):
            break
        count *= 2
    return tuple(ranked[:3])


def _ranked(bench: Bench, trial: Trial, model: onnx.ModelProto) -> list[str]:
    """Return the quantized products by damage per millisecond that float would cost."""
    limited = replace(bench.data, limit=min(bench.data.limit or _EXPLAINED, _EXPLAINED))
    account = explain(str(bench.float_model), trial.model, limited)
    harm = account.metric.harm
    nodes = _readers(model)
    damage: dict[str, float] = defaultdict(float)
    for entry in account.entries:
        readers = nodes.get(_own_name(entry.site.name, nodes), [])
        for name in readers:
            damage[name] += harm * entry.amount / len(readers)
    feeds = next(iter(bench.data.batches(bench.batch_size))).feeds
    times = {each.name: each.seconds for each in execute(model, feeds, runs=2).nodes}
    usual = sorted(times.values())[len(times) // 2] if times else 1e-6
    return sorted(
        (name for name, amount in damage.items() if amount > 0),
        key=lambda name: -damage[name] / max(times.get(name, usual), 1e-6),
    )


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


def _readers(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return the names of the products that read each tensor, weights and biases included."""
    editor = Editor(model)
    readers: dict[str, list[str]] = defaultdict(list)
    for node in editor.root.graph.node:
        if isinstance(find_product(node, editor.root), Product):
            for name in (*node.input, *node.output):
                readers[name].append(node_name(node))
    return readers


def _escaped(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_/" else f"\\{c}" for c in name)


def _deliver(trial: Trial, output: Path) -> None:
    """Copy the best model to the output, with its recipe beside it; each whole or not at all."""
    beside = output.with_name(f".{output.name}.new")
    try:
        shutil.copyfile(trial.model, beside)
        beside.replace(output)
        recipe = output.with_suffix(".toml")
        beside.write_text(recipe_text(trial.recipe), encoding="utf-8")
        beside.replace(recipe)
    finally:
        beside.unlink(missing_ok=True)
