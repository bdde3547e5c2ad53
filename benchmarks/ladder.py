"""Every mode on real models, each verified: size, speed and quality in one table.

    python -m benchmarks.ladder [--only CNN]                       models of the test suite
    python -m benchmarks.ladder --model M.onnx --data D.npz [--calibration C.npz]   your own

One row is one `foldmark quantize` and one `foldmark verify` of what it made. The samples that
are scored are not those that ranges and methods saw.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foldmark.errors import FoldmarkError
from foldmark.proof.verify import verify
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import MethodName, Recipe
from foldmark.recipes.recipe_file import BUILT_IN
from foldmark.recipes.save import save_model


class Subject(NamedTuple):
    """A float model with samples for calibration and others for scoring."""

    name: str
    model: Path
    calibration: Any
    held_out: Any


def subjects() -> Iterator[Subject]:
    from tests.models.branches import branches, samples
    from tests.models.digits import held_out, images, residual_network
    from tests.models.minilm import SENTENCES, minilm, tokens

    turned = tuple(" ".join(reversed(sentence.split())) for sentence in SENTENCES)
    seen = tokens((SENTENCES * 3)[:64], 32)
    yield Subject("MiniLM-L6", minilm(), seen, tokens(turned, 32))
    yield Subject("residual CNN", residual_network(), {"image": images()[0][:64]}, held_out(400))
    yield Subject("model with If", branches(), samples(64), samples(64, seed=1))


def recipes() -> Iterator[tuple[str, Recipe]]:
    yield from BUILT_IN.items()
    smooth = (MethodName.SMOOTHQUANT,)
    yield "static, smoothquant", replace(BUILT_IN["static"], methods=smooth)
    yield "dynamic, smoothquant", replace(BUILT_IN["dynamic"], methods=smooth)


def row(subject: Subject, name: str, recipe: Recipe, scratch: Path, options: Any) -> str:
    path = scratch / "quantized.onnx"
    try:
        made = quantize_model(subject.model, recipe, subject.calibration)
        save_model(made.model, path)
        proof = verify(
            path,
            subject.model,
            subject.held_out,
            batch_sizes=[8],
            seconds=options.seconds,
            threads=options.threads,
        )
    except FoldmarkError as error:
        return f"| {subject.name} | {name} | {error.what} | | | | |"
    speed, quality = proof.speeds[0].ratio, proof.quality
    score = "" if quality.score is None else (
        f"{quality.score.quantized_score:.4f} ({quality.score.change.value:+.4f})"
    )  # fmt: skip
    cosine = max(each.cosine for each in quality.outputs)
    return (
        f"| {subject.name} | {name} | {proof.size.total / 1e6:.2f} | {speed.value:.2f} "
        f"[{speed.low:.2f}, {speed.high:.2f}] | {100 * proof.kernels.integer_share:.0f} % "
        f"| {cosine:.1e} | {score} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--only", help="one of the built-in models, by a part of its name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.model is None:
        chosen = [each for each in subjects() if (options.only or each.name) in each.name]
    else:
        calibration = options.calibration or options.data
        chosen = [Subject(options.model.stem, options.model, calibration, options.data)]
    print("| model | recipe | MB | times faster, batch 8 | on integers | 1 - cosine | accuracy |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as scratch:
        for subject in chosen:
            size = subject.model.stat().st_size / 1e6
            print(f"| {subject.name} | float | {size:.2f} | 1 | | | |")
            for name, recipe in recipes():
                print(row(subject, name, recipe, Path(scratch), options), flush=True)


if __name__ == "__main__":
    np.seterr(all="warn")
    main()
