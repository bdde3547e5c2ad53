"""The ladder that people climb by hand: dynamic, static, other ranges, methods, repairs."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from foldmark.calibrate.observers import Method
from foldmark.errors import FoldmarkError, NotSupported
from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8_REDUCED
from foldmark.formats.onnx_file import read_model
from foldmark.recipes.recipe import MethodName, Mode, Recipe
from foldmark.recipes.recipe_file import BUILT_IN, recipe_text
from foldmark.recipes.save import save_model
from foldmark.runtimes.machine import machine
from foldmark.runtimes.profile import all_nodes
from foldmark.tuning.kept import kept_repairs
from foldmark.tuning.repairs import Repair, find_repairs, repaired
from foldmark.tuning.slow import compare_products, in_float
from foldmark.tuning.trial import Bench, Trial
from foldmark.tuning.watch import Promise, Silence, Step, Watch

__all__ = ["Goal", "Tuning", "tune"]

_LARGEST_REPAIR = 32
_WORTHWHILE = 0.5  # of what the fastest trial gains: what gains less is no reason to stop
_TIMED = 5  # runs by which the slowest operators are told
_SEVEN_BITS = ONNXRUNTIME_WEIGHT_INT8_REDUCED


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
        return self.keeps_score(trial) and trial.speed.value >= self.min_speedup

    def keeps_score(self, trial: Trial) -> bool:
        """Return whether a trial's score falls by no more than it may."""
        # A drop of one sample in 200 is 0.005 to a person, a bit more to a float.
        return trial.drop <= self.max_drop + 1e-9


@dataclass(frozen=True)
class Tuning:
    """What the ladder led to.

    Attributes:
        steps: every trial in order, each beside the one it changes.
        best: the fastest that reaches the goal; else the fastest that keeps the score; else the
            one whose score falls least.
        reached: whether the goal holds.
        blame: what holds the best trial back, worst first, when the goal is not reached or the
            trial is slower than float.
        repairs: what the account suggested, most saving per millisecond first, whether it was
            tried or not; empty where the account was not asked.
    """

    steps: tuple[Step, ...]
    best: Trial
    reached: bool
    blame: tuple[str, ...]
    repairs: tuple[Repair, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials alone."""
        return tuple(step.trial for step in self.steps)


def tune(bench: Bench, goal: Goal, output: Path, watch: Watch | None = None) -> Tuning:
    """Climb until the goal holds; write the best model and the recipe that makes it.

    The cheap rungs first: dynamic and static, both, so that the faster of two good ones is
    taken; then other ranges, then methods, each kept when it helps; then what the account names
    gets another range or 16 bits or is left in float, those that save most per millisecond first.
    All these mend the score: where speed alone is missing they are not tried. Where the best is
    too slow, or slower than float, what takes longer on integers than in float is left in float.

    Raises NotSupported when no recipe could be followed at all.
    """
    climb = _Climb(bench, goal, watch or Silence())
    model = read_model(bench.float_model)
    rungs, improvements = list(_first_rungs(model)), list(_improvements(model))
    climb.watch.planned(len(rungs) + len(improvements) + _LARGEST_REPAIR.bit_length() + 1)
    for step, recipe in rungs:
        climb.try_recipe(step, recipe)
    for step, change in improvements:
        if climb.wants_score():
            climb.improve(step, change)
    blame = _repair(climb, model) if climb.wants_score() else ()
    if climb.reached():
        blame = ()  # what was missing of the score is there
    if climb.wants_speed():
        blame = (*blame, *_leave_slow(climb, model))
    best = climb.best()
    if best is None:
        failures = "; ".join(
            dict.fromkeys(trial.failure for trial in (step.trial for step in climb.steps))
        )
        raise NotSupported("no recipe could be followed", got=failures)
    if best.speed.value < goal.min_speedup:
        blame = (*blame, *_slowest(bench, best))
    _deliver(best, output)
    content = climb.reached() and best.speed.high >= 1
    told = () if content else blame
    return Tuning(tuple(climb.steps), best, climb.reached(), told, climb.repairs)


class _Climb:
    """The trials so far and the best of them."""

    def __init__(self, bench: Bench, goal: Goal, watch: Watch) -> None:
        self.bench, self.goal, self.watch, self.steps = bench, goal, watch, list[Step]()
        self.repairs: tuple[Repair, ...] = ()
        self._aside: list[Trial] = []

    def best(self) -> Trial | None:
        """The fastest trial that reaches the goal, else the nearest: the score comes first."""
        made = self._made()
        good = [trial for trial in made if self.goal.holds(trial)]
        kept = good or [trial for trial in made if self.goal.keeps_score(trial)]
        if kept:
            return max(kept, key=lambda trial: trial.speed.value)
        return min(made, key=lambda trial: (trial.drop, -trial.speed.value), default=None)

    def base(self) -> Trial | None:
        """The trial to improve: of those fast enough, the one with the least drop.

        Of equal ones that which was tried first, and of the first rungs the faster: a change
        that gained nothing is not kept.
        """
        made = self._made()
        fast = [trial for trial in made if trial.speed.value >= self._least_speed()]
        order = {id(step.trial): i for i, step in enumerate(self.steps) if step.base is not None}
        return min(
            fast or made,
            key=lambda trial: (trial.drop, order.get(id(trial), -1), -trial.speed.value),
            default=None,
        )

    def _made(self) -> list[Trial]:
        trials = [step.trial for step in self.steps]
        return [trial for trial in trials if trial.model and trial not in self._aside]

    def set_aside(self, trial: Trial) -> None:
        """Never take this trial for the best, whatever it measured."""
        self._aside.append(trial)

    def reached(self) -> bool:
        best = self.best()
        return best is not None and self.goal.holds(best)

    def wants_score(self) -> bool:
        """Return whether a better score is what keeps the goal from holding."""
        made = self._made()
        if not made or any(self.is_enough(trial) for trial in made):
            return False
        fast = any(trial.speed.value >= self._least_speed() for trial in made)
        return fast or not any(self.goal.keeps_score(trial) for trial in made)

    def is_enough(self, trial: Trial) -> bool:
        """Return whether a trial reaches the goal and is worthwhile beside the fastest."""
        return self.goal.holds(trial) and trial.speed.value >= self._least_speed()

    def _least_speed(self) -> float:
        """The speed below which a trial is neither improved nor a reason to stop.

        A dynamic model whose convolutions stay in float keeps any score, and gains nothing: where
        another trial is surely faster than float, half of what it surely gains is asked for.
        """
        gains = [trial.speed.low - 1 for trial in self._made() if trial.speed.low > 1]
        return max(self.goal.min_speedup, 1 + _WORTHWHILE * max(gains) if gains else 0.0)

    def wants_speed(self) -> bool:
        """Return whether the best trial is too slow, or surely slower than float."""
        best = self.best()
        if best is None or not self.goal.keeps_score(best):
            return False
        return best.speed.value < self.goal.min_speedup or best.speed.high < 1

    def try_recipe(
        self, name: str, recipe: Recipe, base: Trial | None = None, promise: Promise | None = None
    ) -> Trial:
        """Measure a recipe, or read what an earlier run measured."""
        self.watch.begun(name)
        step = Step(self.bench.run(name, recipe), base, promise)
        self.steps.append(step)
        self.watch.ended(step)
        return step.trial

    def improve(self, step: str, change: Callable[[Recipe], Recipe | None]) -> None:
        """Try a change of the recipe to improve; the best stays when it does not help."""
        base = self.base()
        changed = change(base.recipe) if base is not None else None
        if changed is not None:
            self.try_recipe(step, replace(changed, name=step), base=base)


def _first_rungs(model: onnx.ModelProto) -> Iterator[tuple[str, Recipe]]:
    kinds = {node.op_type for node in all_nodes(model)}
    if kinds & {"MatMul", "Gemm", "LSTM"}:
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

    if machine().saturates:
        # Pairs of products that are added in 16 bits fit there with codes of -64 to 64.
        yield "7-bit weights", lambda recipe: replace(recipe, rule=_SEVEN_BITS.name)
    yield "ranges by mse", observed(Method.MSE)
    yield "ranges by percentile", observed(Method.PERCENTILE)
    if any(node.op_type in ("MatMul", "Gemm") for node in all_nodes(model)):
        yield "smoothing", with_method(MethodName.SMOOTHQUANT)
    yield "bias correction", with_method(MethodName.BIAS_CORRECTION)
    yield "weights clipped by mse", with_method(MethodName.MSE_CLIPPING)


def _repair(climb: _Climb, model: onnx.ModelProto) -> tuple[str, ...]:
    """Follow ever more of the account's repairs; return who is to blame."""
    base = climb.base()
    assert base is not None

    def find() -> tuple[Repair, ...]:
        climb.watch.explaining(0.0)
        return find_repairs(climb.bench, base, model, climb.watch.explaining)

    try:
        repairs = climb.repairs = kept_repairs(base, find)
    except FoldmarkError as error:
        return (f"the account could not be taken: {error.sentence()}",)
    count = 1
    while repairs and climb.wants_score() and count <= _LARGEST_REPAIR:
        chosen = repairs[:count]
        made = repaired(base.recipe, chosen)
        trial = climb.try_recipe(
            _in_words(base.recipe, made),
            replace(made, name=f"{len(chosen)} repairs"),
            base=base,
            promise=Promise(
                min(1.0, sum(each.saving for each in chosen)),
                sum(each.milliseconds for each in chosen),
            ),
        )
        if len(chosen) == len(repairs) or climb.goal.holds(trial):
            break
        count *= 2
    if not repairs:
        return ("no error that the account could name: what is left may be chance",)
    worst = sorted(repairs, key=lambda repair: -repair.saving)
    return tuple(dict.fromkeys(repair.blame for repair in worst))[:3]


def _leave_slow(climb: _Climb, model: onnx.ModelProto) -> tuple[str, ...]:
    """Leave in float what integers made slower; return what to say where that is everything."""
    base = climb.best()
    assert base is not None
    found = compare_products(climb.bench, base, model)
    if not found.lost:
        return ()
    if len(found.lost) == found.compared:
        return ("each operator takes longer on integers than in float",)
    names = sorted(found.lost, key=lambda name: -found.lost[name])
    words = f"{len(names)} slow operator{'s' * (len(names) > 1)} in float"
    trial = climb.try_recipe(words, in_float(base.recipe, names), base=base)
    if trial.speed.low <= base.speed.value:
        climb.set_aside(trial)  # no gain that another measurement would show again
    return ()


def _slowest(bench: Bench, trial: Trial) -> tuple[str, ...]:
    """Return the operators that take most of a trial's time, in words."""
    path = Path(trial.model)
    nodes = bench.executed(read_model(path), path.parent, runs=_TIMED)
    total = sum(each.seconds for each in nodes) or 1.0
    worst = sorted(nodes, key=lambda each: -each.seconds)[:3]
    return tuple(
        f"{each.name} ({each.operator}, {100 * each.seconds / total:.0f} % of the time)"
        for each in worst
    )


def _in_words(before: Recipe, after: Recipe) -> str:
    """Return what repairs made of a recipe."""
    ranges = len(set(after.ranges) - set(before.ranges))
    wide = len(after.codes) - len(before.codes)
    floats = len(after.overrides) - len(before.overrides)
    parts = [f"{ranges} other range{'s' * (ranges > 1)}"] * bool(ranges)
    parts += [f"{wide} tensor{'s' * (wide > 1)} in 16 bits"] * bool(wide)
    parts += [f"{floats} operator{'s' * (floats > 1)} in float"] * bool(floats)
    return ", ".join(parts)


def _deliver(trial: Trial, output: Path) -> None:
    """Copy the best model to the output, with its recipe beside it; both whole or not at all."""
    model, recipe = (output.with_name(f".{output.name}.{end}") for end in ("new", "toml"))
    try:
        recipe.write_text(recipe_text(trial.recipe), encoding="utf-8")
        if Path(f"{trial.model}.data").exists():
            save_model(read_model(Path(trial.model)), output)  # its weights lie in a second file
        else:
            shutil.copyfile(trial.model, model)
            model.replace(output)
        recipe.replace(output.with_suffix(".toml"))
    finally:
        for each in (model, recipe):
            each.unlink(missing_ok=True)
