"""`foldmark diff`: two tools' results for one model, and which rule differs."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from foldmark.cli.data_option import DATA_HELP, parse_data
from foldmark.cli.json_option import JSON_HELP, write_json
from foldmark.cli.progress import shown_progress
from foldmark.ledger.metrics import Metric
from foldmark.report.difference import diff

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
@click.option("--data", metavar="DATA", help=f"Price each decision at the output. {DATA_HELP}")
@click.option(
    "--metric",
    type=click.Choice(tuple(metric.value for metric in Metric)),
    help="What is compared at the output. Default: by the output's name and shape.",
)
@click.option("--samples", type=click.IntRange(1), help="At most so many samples.")
@click.option("--all", "everything", is_flag=True, help="Every weight, rule and open decision.")
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
def command(
    *,
    a: Path,
    b: Path,
    float_model: Path | None,
    data: str | None,
    metric: str | None,
    samples: int | None,
    everything: bool,
    json_file: str | None,
) -> None:
    """Say what two quantized files of one model do differently.

    A and B may be of different formats, and the float model of a third; their weights are
    matched by name, or by shape and content. With --float the rule of each side is found from
    its codes and scales: range, divisor, storage of the scale, zero point, order of operations,
    rounding; or, where no rounding made them, error feedback, learned rounding, folded scales
    or a rotation is told by its residuals. What a tensor can't show is said to be open.

    With --data too, and an ONNX float model, every decision is put from one side into the other,
    alone, and what it does to the output is predicted and measured. A file of weights alone is
    priced in the float model.

    \b
    Examples:
      foldmark diff theirs.onnx ours.onnx --float model.onnx
      foldmark diff theirs.onnx ours.onnx --float model.onnx --data batch.npz
      foldmark diff q4_0.gguf gptq.safetensors --float model.safetensors
    """
    with ExitStack() as bars:

        def progress(doing: str) -> Callable[[int, int], None] | None:
            bars.pop_all().close()
            return bars.enter_context(shown_progress(doing))

        found = diff(
            a,
            b,
            float_model=float_model,
            data=parse_data(data),
            metric=metric,
            samples=samples,
            progress=progress,
        )
    if json_file is not None:
        write_json(found.to_json(), json_file)
    if json_file != "-":
        click.echo(found.text(everything=everything))
