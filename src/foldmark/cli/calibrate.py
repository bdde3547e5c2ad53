"""`foldmark calibrate`: ranges of activations from data, saved for later."""

from pathlib import Path
from typing import Any

import click

from foldmark.calibrate.calibration import Calibration, calibrate
from foldmark.calibrate.observers import Method, Observer
from foldmark.calibrate.ranges_file import load_calibration, save_calibration
from foldmark.calibrate.remarks import remarks
from foldmark.calibrate.statistics import Detail
from foldmark.cli.data_option import DATA_HELP, parse_data
from foldmark.cli.json_option import JSON_HELP, check_json, write_json
from foldmark.cli.observer_option import observer_from, observer_options
from foldmark.cli.output_option import check_output, progress
from foldmark.cli.verify_text import table
from foldmark.errors import NoData
from foldmark.formats.onnx_file import read_model
from foldmark.report.words import counted
from foldmark.runtimes.batches import open_data

__all__ = ["command"]

_SHOWN = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", metavar="SOURCE", help=DATA_HELP)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File of ranges, JSON."
)
@observer_options
@click.option("--bits", type=click.IntRange(2, 16), default=8, show_default=True)
@click.option(
    "--tensor", "tensors", multiple=True, metavar="NAME", help="Only this activation; repeatable."
)
@click.option(
    "--channel-axis",
    type=int,
    metavar="AXIS",
    help="Ranges of every channel along this axis too: 1 for images, -1 for tokens.",
)
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--merge",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Add an earlier run's file; repeatable. With it, --data may be left out.",
)
@click.option("--held-out", metavar="SOURCE", help="Other samples, to see what leaves the ranges.")
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
@click.option("--force", is_flag=True, help="Overwrite the output.")
def command(
    *,
    model: Path,
    data: str | None,
    output: Path,
    method: str,
    symmetric: bool,
    percentile: float,
    constant: float,
    bits: int,
    tensors: tuple[str, ...],
    channel_axis: int | None,
    batch_size: int,
    others: tuple[Path, ...],
    held_out: str | None,
    json_file: str | None,
    force: bool,
) -> None:
    """Learn the range of every activation of MODEL worth quantizing, a batch at a time.

    The file keeps what was seen, not only the ranges: it can be merged with other runs and
    used with another observer later. Memory does not grow with the number of samples.
    """
    check_output(output, force)
    check_json(json_file, [model, output, *others])
    observer = observer_from(method, symmetric, percentile, constant, bits)
    found = Calibration()
    for path in others:
        found.merge(load_calibration(path))
    if data is not None or not others:
        found.merge(
            _run(model, data, observer, tensors, batch_size=batch_size, channel_axis=channel_axis)
        )
    if not any(each.batches for each in found.tensors.values()):
        raise NoData("not a single value was seen", where=str(model))
    held = None
    if held_out is not None:
        histograms = Observer(Method.PERCENTILE)
        held = _run(model, held_out, histograms, tuple(found.tensors), batch_size=batch_size)
    save_calibration(found, output, observer)
    if json_file is not None:
        write_json(_document(found, observer, held, output), json_file)
    if json_file != "-":
        click.echo(_text(found, observer, held, output))


def _run(
    path: Path,
    data: str | None,
    observer: Observer,
    tensors: tuple[str, ...],
    *,
    batch_size: int,
    channel_axis: int | None = None,
) -> Calibration:
    model = read_model(path)
    samples = open_data(parse_data(data), model).without_labels()
    with progress("calibrating", samples.samples) as step:
        return calibrate(
            model,
            samples,
            observer=observer,
            tensors=tensors or None,
            batch_size=batch_size,
            detail=Detail.HISTOGRAM,
            channel_axis=channel_axis,
            progress=step,
        )


def _document(
    found: Calibration, observer: Observer, held: Calibration | None, output: Path
) -> dict[str, Any]:
    ranges = found.ranges(observer)
    return {
        "schema": "foldmark.calibrate/1",
        "file": str(output),
        "samples": found.samples,
        "batches": found.batches,
        "observer": observer.method.value,
        "ranges": [
            {
                "tensor": name,
                "low": each.low,
                "high": each.high,
                "values": found.tensors[name].values,
            }
            for name, each in ranges.items()
        ],
        "never_seen": list(found.unseen),
        "remarks": [" ".join(each.split()) for each in remarks(found, observer, held)],
    }


def _text(found: Calibration, observer: Observer, held: Calibration | None, output: Path) -> str:
    ranges = found.ranges(observer)
    widest = sorted(ranges, key=lambda name: ranges[name].low - ranges[name].high)
    rows = [
        (
            name,
            f"{ranges[name].low:.4g}",
            f"{ranges[name].high:.4g}",
            f"{found.tensors[name].values:,}",
        )
        for name in widest[:_SHOWN]
    ]
    parts = [
        f"{counted(len(ranges), 'range')} from {counted(found.samples, 'sample')} in "
        f"{counted(found.batches, 'batch', 'batches')}, "
        f"written to {output}.",
        table(("activation, widest first", "low", "high", "values"), rows),
    ]
    if len(widest) > _SHOWN:
        parts[-1] += f"\n... and {len(widest) - _SHOWN} more in the file"
    parts.append("\n".join(remarks(found, observer, held)))
    return "\n\n".join(part for part in parts if part)
