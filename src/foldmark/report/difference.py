"""`foldmark.diff`: two files of one model become a report of what they do differently."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import onnx

from foldmark.compare.diff import Diff, diff_artefacts
from foldmark.compare.mixtures import find_mixtures
from foldmark.compare.prices import Prices
from foldmark.compare.pricing import price_decisions
from foldmark.errors import BadInput, ModelsDiffer, NotSupported
from foldmark.formats.onnx_file import read_model
from foldmark.formats.opening import open_artefact
from foldmark.formats.stored import Artefact
from foldmark.ledger.metrics import Metric
from foldmark.report.difference_json import to_json
from foldmark.report.difference_text import render, verdict
from foldmark.runtimes.batches import DataLike

__all__ = ["Difference", "diff"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, repr=False)
class Difference:
    """What two files do differently; `print` it for the text that the command prints.

    Attributes:
        found: weight by weight.
        prices: what each decision costs at the output; None without data.
    """

    found: Diff
    prices: Prices | None = None

    @property
    def verdict(self) -> str:
        """What differs, in a few sentences."""
        return verdict(self.found, self.prices)

    def text(self, *, everything: bool = False) -> str:
        """Return the report in 80 columns: one screen, or everything."""
        return render(self.found, self.prices, everything=everything)

    def __str__(self) -> str:
        """Return the report on one screen of 80 columns."""
        return self.text()

    def __repr__(self) -> str:
        """Return the verdict."""
        return f"<Difference of {len(self.found.tensors)} weights: {self.verdict}>"

    def to_json(self) -> dict[str, Any]:
        """Return the report in the schema "foldmark.diff/1"."""
        return to_json(self.found, self.prices)


def diff(
    left: str | PathLike[str],
    right: str | PathLike[str],
    *,
    float_model: str | PathLike[str] | None = None,
    data: DataLike = None,
    metric: Metric | str | None = None,
    samples: int | None = None,
    progress: Callable[[str], Progress | None] | None = None,
) -> Difference:
    """Say what two quantized files of one model do differently.

    left, right  the two results, in any format that is read
    float_model  what they were made from: with it each side's rule is found
    data         samples for the float model, an ONNX file then: each decision is priced at the
                 output (see `open_data`)
    metric       what is compared at the output; chosen by its name and shape when None
    samples      at most so many
    progress     called with what begins, returns what is called with (done, total)

    Raises:
        BadInput: data without a float model that runs; a file or the data can't be used.
        NothingQuantized, ModelsDiffer: nothing to compare.
    """
    if data is not None and float_model is None:
        raise BadInput(
            "prices at the output need the float model",
            where="the data",
            todo="name the float model as an ONNX file (--float)",
        )
    if data is None and (metric is not None or samples is not None):
        raise BadInput(
            "a metric or a number of samples says nothing without data",
            todo="name samples (--data)",
        )
    measure = None if metric is None else _metric(metric)
    paths = [Path(left), Path(right), *([Path(float_model)] if float_model is not None else [])]
    opened: list[Artefact] = []
    try:
        for path in paths:
            opened.append(open_artefact(path))
        if data is not None:
            _check_runs(opened[2])
        original = opened[2] if len(opened) > 2 else None
        begin = progress or (lambda _: None)
        found = diff_artefacts(opened[0], opened[1], original, begin("comparing weights"))
        if data is None:
            return Difference(found)
        mixtures = find_mixtures(found)
        if not mixtures:
            raise ModelsDiffer(
                "no weight of both files is a weight of the float model",
                where=str(opened[2].path),
                todo="name the float model that both were made from",
            )
        models = [_model(artefact) for artefact in opened]
        assert models[2] is not None
        prices = price_decisions(
            models[2],
            models[0],
            models[1],
            mixtures,
            data,
            metric=measure,
            samples=samples,
            on_samples=begin("pricing"),
        )
        return Difference(found, prices)
    finally:
        for artefact in opened:
            artefact.close()


def _metric(metric: Metric | str) -> Metric:
    names = {each.value: each for each in Metric}
    if isinstance(metric, Metric):
        return metric
    if metric not in names:
        raise BadInput("no such metric", got=repr(metric), expected=f"one of {', '.join(names)}")
    return names[metric]


def _check_runs(original: Artefact) -> None:
    if original.format_name != "ONNX":
        raise NotSupported(
            "prices at the output need a float model that runs",
            where=str(original.path),
            got=original.format_name,
            expected="an ONNX file",
            todo="leave the data out, or export the model to ONNX",
        )


def _model(artefact: Artefact) -> onnx.ModelProto | None:
    """Return a file as a model that runs; None for a file of weights."""
    return read_model(artefact.path) if artefact.format_name == "ONNX" else None
