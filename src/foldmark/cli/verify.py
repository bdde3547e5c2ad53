"""`foldmark verify`: size, speed and quality of a quantized model, measured together."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import click

from foldmark.cli.data_option import DATA_HELP, LABELS_HELP, parse_data, parse_labels
from foldmark.cli.json_option import JSON_HELP, check_json, write_json
from foldmark.cli.number_option import NUMBER
from foldmark.cli.verify_text import markdown, text
from foldmark.errors import BadInput, FileUnreadable
from foldmark.proof.document import proof_document
from foldmark.proof.verify import Demands, check, verify
from foldmark.runtimes.runtime import Runtime

__all__ = ["command", "score_from"]


def score_from(spelled: str | None) -> tuple[Callable[..., float] | None, str]:
    """Return the function that file.py:function names, and its name."""
    if spelled is None:
        return None, "score"
    path, _, function = spelled.rpartition(":")
    if not Path(path).is_file():
        raise FileUnreadable(
            "no such file", where=f"--score {spelled}", expected="file.py:function"
        )
    spec = importlib.util.spec_from_file_location("foldmark_score", path)
    if spec is None or spec.loader is None:
        raise BadInput("not a Python file", where=f"--score {spelled}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"importing it raised {type(error).__name__}: {error}", where=f"--score {spelled}"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise BadInput(f"no function {function!r} there", where=f"--score {spelled}")
    return found, function


def _sizes(_context: click.Context, _parameter: click.Parameter, spelled: str) -> tuple[int, ...]:
    parts = spelled.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter("sizes separated by commas, such as 1,8,32")
    return tuple(int(part) for part in parts)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("quantized", type=click.Path(path_type=Path))
@click.option(
    "--float",
    "float_model",
    required=True,
    metavar="FILE",
    help="The float model it was made from.",
)
@click.option("--data", metavar="SOURCE", help=DATA_HELP)
@click.option("--labels", metavar="SOURCE", help=LABELS_HELP)
@click.option(
    "--score",
    metavar="FILE:FUNCTION",
    help="The task's own score: a function of (outputs, labels); more is better.",
)
@click.option(
    "--together",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Consecutive samples that the score takes together: 2 for pairs of sentences.",
)
@click.option(
    "--runtime",
    type=click.Choice([each.value for each in Runtime]),
    default=Runtime.ONNXRUNTIME.value,
    show_default=True,
    help="What runs both models; openvino is an extra.",
)
@click.option(
    "--batch-sizes",
    default="1,8",
    show_default=True,
    callback=_sizes,
    metavar="N,N",
    help="Samples a run when timing.",
)
@click.option("--threads", type=click.IntRange(1), help="Threads of an operator. Default: all.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    help="Time spent on each batch size.",
)
@click.option(
    "--max-drop", type=NUMBER, help="Fail when the score falls by more (0.01: one point)."
)
@click.option("--min-speedup", type=NUMBER, help="Fail when it is not surely so many times faster.")
@click.option(
    "--require-integer", is_flag=True, help="Fail unless all weights' products are integer."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print tables for a pull request.")
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
def command(
    *,
    quantized: Path,
    float_model: str,
    data: str | None,
    labels: str | None,
    score: str | None,
    together: int,
    runtime: str,
    batch_sizes: tuple[int, ...],
    threads: int | None,
    seconds: float,
    max_drop: float | None,
    min_speedup: float | None,
    require_integer: bool,
    as_markdown: bool,
    json_file: str | None,
) -> None:
    """Prove that QUANTIZED is smaller, faster and as good.

    Float and quantized run in turns on the same samples; sizes are read from the files; the
    kernels are those that ONNX Runtime's profiler saw, or OpenVINO's executed graph. Exit code 1
    when a demand is not met.
    """
    check_json(json_file, [quantized, Path(float_model)])
    given, label_name = parse_labels(labels)
    function, score_name = score_from(score)
    proof = verify(
        quantized,
        float_model,
        parse_data(data),
        labels=given,
        label_name=label_name,
        batch_sizes=batch_sizes,
        threads=threads,
        seconds=seconds,
        score=function,
        score_name=score_name,
        together=together,
        runtime=Runtime(runtime),
    )
    if json_file is not None:
        write_json(proof_document(proof), json_file)
    if json_file != "-":
        click.echo(markdown(proof) if as_markdown else text(proof))
    check(proof, Demands(max_drop, min_speedup, require_integer))
