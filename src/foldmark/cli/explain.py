"""`foldmark explain`: where the accuracy of a quantized model went."""

from pathlib import Path

import click

from foldmark.cli.data_option import DATA_HELP, LABELS_HELP, parse_data, parse_labels
from foldmark.cli.json_option import JSON_HELP, check_json, write_json
from foldmark.cli.progress import shown_share
from foldmark.ledger.metrics import Metric
from foldmark.report.explain import explain

__all__ = ["command"]

_METRICS = tuple(metric.value for metric in Metric)


@click.command("explain", short_help="Where did the accuracy go? An account that adds up.")
@click.argument("models", nargs=-1, metavar="[FLOAT] QUANTIZED", type=click.Path(path_type=Path))
@click.option("--data", metavar="DATA", help=DATA_HELP)
@click.option("--labels", metavar="LABELS", help=LABELS_HELP)
@click.option(
    "--metric",
    type=click.Choice(_METRICS),
    help="What is compared. Default: by the output's name and shape, and the report says why.",
)
@click.option("--output", "outputs", multiple=True, help="Output to compare; may be repeated.")
@click.option("--samples", type=click.IntRange(1), help="At most so many samples.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="Samples that run at once: memory is one batch. Default: as many as record 32 MB of "
    "errors, 32 at most; an eighth of them where scales are chosen at run time. Where a batch's "
    "samples can't be told apart intervals are over batches, of 1 up to 32 samples.",
)
@click.option(
    "--quantized-only", is_flag=True, help="There is no float model: explain activations alone."
)
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
def command(
    *,
    models: tuple[Path, ...],
    data: str | None,
    labels: str | None,
    metric: str | None,
    outputs: tuple[str, ...],
    samples: int | None,
    batch_size: int | None,
    quantized_only: bool,
    json_file: str | None,
) -> None:
    """Say where the accuracy of a quantized model went.

    FLOAT is the model, QUANTIZED its quantized copy, both ONNX. Both run on your samples, and an
    account is printed: which tensors moved the output, by how much each, which element set the
    scale, rounding or clipping, and what each cure would buy. The entries sum to the measured
    change; the sum is printed beside it.

    \b
    foldmark explain model.onnx model.int8.onnx --data batch.npz
    foldmark explain model.onnx model.int8.onnx --data load.py:samples --labels y
    foldmark explain --quantized-only model.int8.onnx --data random:16
    """
    exact, quantized = _two(models, quantized_only)
    source = parse_data(data)
    given, label_name = parse_labels(labels)
    check_json(json_file, [*models, given, source if isinstance(source, Path) else None])
    with shown_share("explaining") as advance:
        report = explain(
            exact,
            quantized,
            source,
            labels=given,
            metric=metric,
            outputs=outputs,
            samples=samples,
            batch_size=batch_size,
            label_name=label_name,
            on_progress=advance,
        )
    if json_file is not None:
        write_json(report.to_json(), json_file)
    if json_file != "-":
        click.echo(str(report))


def _two(models: tuple[Path, ...], quantized_only: bool) -> tuple[Path | None, Path]:
    wanted = 1 if quantized_only else 2
    if len(models) != wanted:
        needs = "QUANTIZED alone" if quantized_only else "two models: FLOAT QUANTIZED"
        raise click.UsageError(f"explain takes {needs}; got {len(models)}")
    return (None, models[0]) if quantized_only else (models[0], models[1])
