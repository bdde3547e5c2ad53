"""`foldmark diff`: two tools' results for one model, and which rule differs."""

from pathlib import Path

import click

from foldmark.cli.diff_text import text
from foldmark.cli.json_option import write_json
from foldmark.cli.progress import shown_progress
from foldmark.compare.diff import Diff, diff_artefacts
from foldmark.compare.diff_document import diff_document
from foldmark.formats.opening import open_artefact
from foldmark.formats.stored import Artefact

__all__ = ["command"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--float",
    "float_model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The float model both were made from: with it the rules themselves are found.",
)
@click.option("--json", "json_file", metavar="FILE", help='Write everything as JSON ("-": stdout).')
def command(*, a: Path, b: Path, float_model: Path | None, json_file: str | None) -> None:
    """Say what two quantized files of one model do differently.

    A and B may be of different formats, and the float model of a third; their weights are
    matched by name, or by shape and content. With --float the rule of each side is found from
    its codes and scales: range, divisor, storage of the scale, zero point, order of operations,
    rounding; or, where no rounding made them, error feedback, learned rounding, folded scales
    or a rotation is told by its residuals. What a tensor can't show is said to be open.

    \b
    Examples:
      foldmark diff theirs.onnx ours.onnx --float model.onnx
      foldmark diff q4_0.gguf gptq.safetensors --float model.safetensors
    """
    opened: list[Artefact] = []
    try:
        for path in (a, b, *([float_model] if float_model is not None else [])):
            opened.append(open_artefact(path))
        found = _compare(opened)
        if json_file is not None:
            write_json(diff_document(found), json_file)
            if json_file == "-":
                return
        click.echo(text(found))
    finally:
        for artefact in opened:
            artefact.close()


def _compare(opened: list[Artefact]) -> Diff:
    original = opened[2] if len(opened) > 2 else None
    with shown_progress("comparing weights") as step:
        return diff_artefacts(opened[0], opened[1], original, step)
