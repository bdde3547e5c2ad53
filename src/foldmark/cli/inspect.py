"""`foldmark inspect`: every quantized tensor of a file, and where each byte goes."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from foldmark.cli.inspect_text import text
from foldmark.cli.json_option import write_json
from foldmark.compare.document import inspection_document
from foldmark.compare.inspection import Inspection, inspect_artefact
from foldmark.formats.opening import open_artefact
from foldmark.formats.stored import Artefact, StoredTensor

__all__ = ["command"]

# Files from this size on take long enough for a progress bar.
_SHOW_PROGRESS_FROM = 2 << 30


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="List every tensor, not the largest only.")
@click.option("--json", "json_file", metavar="FILE", help='Write everything as JSON ("-": stdout).')
def command(*, file: Path, everything: bool, json_file: str | None) -> None:
    """Show every quantized tensor of FILE: scheme, rule, scale setter, codes in use, bytes.

    FILE is a model of ONNX, safetensors (one file or the index of shards), GGUF, TFLite,
    OpenVINO IR (.xml), Core ML (.mlpackage), a PyTorch state dict, or numpy's .npy and .npz.
    Nothing in it is run, and a file of any size is read in little memory.

    \b
    Examples:
      foldmark inspect model.int8.onnx
      foldmark inspect Llama-3-8B-Q4_K_M.gguf --all
      foldmark inspect model.safetensors.index.json --json report.json
    """
    artefact = open_artefact(file)
    try:
        inspection = _inspect(artefact)
        if json_file is not None:
            write_json(inspection_document(inspection), json_file)
            if json_file == "-":
                return
        click.echo(text(inspection, everything))
    finally:
        artefact.close()


def _inspect(artefact: Artefact) -> Inspection:
    if artefact.size < _SHOW_PROGRESS_FROM or not sys.stderr.isatty():
        return inspect_artefact(artefact)
    columns = (TextColumn("reading tensors"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(artefact.tensors))

        def step(_: StoredTensor) -> None:
            progress.advance(task)

        return inspect_artefact(artefact, step)
