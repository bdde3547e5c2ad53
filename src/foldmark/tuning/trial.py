"""One trial of a recipe, measured and kept on disk."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import foldmark
from foldmark.errors import FoldmarkError, InvalidRecipe, NothingQuantized, NotSupported
from foldmark.formats.onnx_file import model_files
from foldmark.formats.whole_file import write_whole
from foldmark.proof.quality import ScoreFunction, measure_quality
from foldmark.proof.verify import drop_of
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Recipe
from foldmark.recipes.recipe_file import parse_recipe, recipe_text
from foldmark.recipes.save import save_model
from foldmark.runtimes.batches import Data
from foldmark.runtimes.onnxruntime import Array, Optimization, Session
from foldmark.runtimes.profile import NodeRun, execute
from foldmark.runtimes.timing import Interval, compare_speed

__all__ = ["Bench", "Trial"]

SCHEMA = "foldmark.trial/1"


@dataclass(frozen=True)
class Trial:
    """What a recipe gave.

    Attributes:
        step: why it was tried, in a few words.
        recipe: the recipe.
        drop: how much worse the model is, by `measure`; infinite when it could not be made.
        measure: what the drop is of ("the drop in accuracy").
        speed: times faster than float, with its 95 % interval.
        size: bytes of the file.
        model: where the model is; "" when it could not be made.
        failure: why it could not be made.
        known_to: half the 95 % interval of the drop on these samples; 0 where nothing is drawn.
    """

    step: str
    recipe: Recipe
    drop: float
    measure: str
    speed: Interval
    size: int
    model: str
    failure: str = ""
    known_to: float = 0.0


@dataclass(frozen=True)
class Bench:
    """What every trial is measured with.

    Attributes:
        float_model: path of the float model.
        data: samples that are scored, with labels.
        calibration: samples that ranges and methods may see.
        folder: where trials are kept.
        score: the task's own score, None for accuracy, agreement or distance.
        score_name: its name.
        together: consecutive samples that it takes together.
        batch_size: samples of a timed run.
        seconds: time of a speed measurement.
        threads: threads of one operator.
    """

    float_model: Path
    data: Data
    calibration: Data
    folder: Path
    score: ScoreFunction | None = None
    score_name: str = "score"
    together: int = 1
    batch_size: int = 8
    seconds: float = 1.0
    threads: int | None = None

    def run(self, step: str, recipe: Recipe) -> Trial:
        """Return the recipe's trial: measured now, or read when an earlier run measured it."""
        key = self._key(recipe)
        kept = self.folder / f"{key}.json"
        if kept.is_file():
            found = self._read(kept)
            if found is not None:
                return found
        path = self.folder / f"{key}.onnx"
        try:
            trial = self._tried(step, recipe, path)
            self._write(kept, trial)
        except BaseException:
            _forget(path)  # interrupted: no trial tells of this model
            raise
        return trial

    def _tried(self, step: str, recipe: Recipe, path: Path) -> Trial:
        try:
            return self._measure(step, recipe, path)
        except (NotSupported, NothingQuantized, InvalidRecipe) as error:
            _forget(path)
            nothing = Interval(0.0, 0.0, 0.0)
            return Trial(step, recipe, float("inf"), "", nothing, 0, "", error.sentence())

    def executed(
        self,
        model: onnx.ModelProto,
        folder: Path,
        *,
        runs: int,
        optimization: Optimization = Optimization.EXTENDED,
    ) -> tuple[NodeRun, ...]:
        """Return what was executed of a model on the first batch, under the profiler.

        Args:
            model: the float model or a quantized one.
            folder: where its external data lies.
            runs: runs that are timed.
            optimization: how far the graph may be rewritten; all of it would rename what
                changes its layout.
        """
        return execute(
            model,
            self._first_batch(),
            runs=runs,
            threads=self.threads,
            folder=folder,
            optimization=optimization,
        ).nodes

    def _first_batch(self) -> Mapping[str, Array]:
        return next(iter(self.data.batches(self.batch_size))).feeds

    def _measure(self, step: str, recipe: Recipe, path: Path) -> Trial:
        made = quantize_model(self.float_model, recipe, self.calibration)
        save_model(made.model, path)
        real, other = (Session(each, threads=self.threads) for each in (self.float_model, path))
        quality = measure_quality(
            real,
            other,
            self.data,
            score=self.score,
            score_name=self.score_name,
            together=self.together,
        )
        drop, measure = drop_of(quality)
        drawn = quality.score.change if quality.score is not None else quality.top1_agreement
        known_to = (drawn.high - drawn.low) / 2 if drawn is not None else 0.0
        feeds = self._first_batch()
        speed = compare_speed(
            lambda: real.run(feeds),
            lambda: other.run(feeds, real.outputs),
            samples=self.batch_size,
            seconds=self.seconds,
        )
        size = sum(each.stat().st_size for each in model_files(path))
        return Trial(step, recipe, drop, measure, speed.ratio, size, str(path), known_to=known_to)

    def _key(self, recipe: Recipe) -> str:
        """Return a name that changes with anything that could change the result."""
        facts = (
            *(each.__version__ for each in (foldmark, onnxruntime, np)),
            recipe_text(recipe),
            *self._changes_of_float,
            self._seen,
            self.score_name,
            _source(self.score),
            self.together,
            self.threads,
            self.batch_size,
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    @cached_property
    def _changes_of_float(self) -> tuple[tuple[int, int], ...]:
        """Size and time of the last change of every file of the float model."""
        found = (each.stat() for each in model_files(self.float_model))
        return tuple((each.st_size, each.st_mtime_ns) for each in found)

    @cached_property
    def _seen(self) -> str:
        """What stands in the data and the calibration, labels too, as one short text."""
        digest = hashlib.blake2b(digest_size=16)
        for data in (self.data, self.calibration.without_labels()):
            digest.update(f"{data.description}|{data.limit}|".encode())
            for batch in data.batches(64):
                arrays: dict[str, Any] = {
                    **batch.feeds,
                    "": batch.labels if batch.labels is not None else [],
                }
                for name in sorted(arrays):
                    array = np.ascontiguousarray(arrays[name])
                    digest.update(f"{name}{array.dtype}{array.shape}".encode())
                    digest.update(array.tobytes())
        return digest.hexdigest()

    def _write(self, path: Path, trial: Trial) -> None:
        document = asdict(trial) | {"schema": SCHEMA, "recipe": recipe_text(trial.recipe)}
        write_whole(json.dumps(document, indent=2) + "\n", path)

    def _read(self, path: Path) -> Trial | None:
        """Return a kept trial; None for a damaged one, which is then measured again."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.pop("schema") != SCHEMA:
                return None
            found["recipe"] = parse_recipe(found["recipe"], str(path))
            found["speed"] = Interval(**found["speed"])
            trial = Trial(**found)
        except (ValueError, KeyError, TypeError, FoldmarkError):
            return None
        return trial if not trial.model or Path(trial.model).is_file() else None


def _forget(model: Path) -> None:
    """Remove a model and the file that its weights may lie in."""
    for each in (model, Path(f"{model}.data")):
        each.unlink(missing_ok=True)


def _source(score: ScoreFunction | None) -> str:
    """Return something that changes with what a score computes."""
    code = getattr(score, "__code__", None)
    return "" if code is None else f"{code.co_code!r}{code.co_consts!r}{code.co_names!r}"
