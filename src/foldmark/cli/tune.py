"""`foldmark tune`: climb from cheap to careful quantization until a target holds."""

from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

import click

from foldmark.cli.data_option import DATA_HELP, LABELS_HELP, parse_data, parse_labels
from foldmark.cli.json_option import JSON_HELP, check_json, write_json
from foldmark.cli.number_option import NUMBER
from foldmark.cli.output_option import check_output
from foldmark.cli.verify import score_from
from foldmark.cli.verify_text import table, wrapped
from foldmark.errors import CheckFailed, FileUnreadable
from foldmark.formats.onnx_file import read_model
from foldmark.recipes.recipe_file import recipe_text
from foldmark.runtimes.batches import open_data
from foldmark.surgery.prepare import refuse_quantized
from foldmark.tuning.repairs import Repair
from foldmark.tuning.trial import Bench, Trial
from foldmark.tuning.tune import Goal, Tuning, tune
from foldmark.tuning.watch import Step

__all__ = ["command"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
@click.option("--data", metavar="SOURCE", help=DATA_HELP)
@click.option("--labels", metavar="SOURCE", help=LABELS_HELP)
@click.option("--score", metavar="FILE:FUNCTION", help="As in foldmark verify.")
@click.option(
    "--together", type=click.IntRange(1), default=1, metavar="N", help="As in foldmark verify."
)
@click.option(
    "--calibration",
    metavar="SOURCE",
    help="Samples for ranges and methods. Default: the first of --data.",
)
@click.option(
    "--calibration-samples", type=click.IntRange(1), default=64, show_default=True, help="At most."
)
@click.option(
    "--max-drop",
    type=NUMBER,
    required=True,
    help="The score may fall by so much (accuracy: 0.01 is one point).",
)
@click.option("--min-speedup", type=NUMBER, default=0.0, help="At least so many times faster.")
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Threads of an operator. Default: all.")
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
@click.option("--force", is_flag=True, help="Overwrite the output.")
def command(
    *,
    model: Path,
    output: Path,
    data: str | None,
    labels: str | None,
    score: str | None,
    together: int,
    calibration: str | None,
    calibration_samples: int,
    max_drop: float,
    min_speedup: float,
    batch_size: int,
    threads: int | None,
    json_file: str | None,
    force: bool,
) -> None:
    """Quantize MODEL as far as the score allows.

    Every trial is kept in OUTPUT.trials, and an interrupted run goes on from there. The recipe
    that makes the result is written beside it. Exit code 1 when the target can't be met; the
    nearest result is written all the same.
    """
    check_output(output, force, model)
    check_json(json_file, [model])
    check_output(output.with_suffix(".toml"), force)
    read = read_model(model)
    refuse_quantized(read, str(model))
    given, label_name = parse_labels(labels)
    function, score_name = score_from(score)
    samples = open_data(parse_data(data), read, given, label_name)
    if function is not None:
        samples = replace(samples, label_kinds="iuf")
    seen = samples if calibration is None else open_data(parse_data(calibration), read)
    folder = output.with_name(f"{output.name}.trials")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileUnreadable(
            "can't be made", where=str(folder), got=(error.strerror or "").lower()
        ) from None
    bench = Bench(
        model,
        samples,
        replace(seen, limit=min(seen.limit or calibration_samples, calibration_samples)),
        folder,
        function,
        score_name,
        together,
        batch_size,
        threads=threads,
    )
    goal = Goal(max_drop, min_speedup)
    quiet = json_file == "-"
    try:
        found = tune(bench, goal, output, None if quiet else _Told(folder))
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()  # it stopped before its first trial was kept
    if json_file is not None:
        write_json(_document(found), json_file)
    if not quiet:
        click.echo(_text(found, goal, output, _again(model, output, bench, calibration or data)))
    if not found.reached:
        raise CheckFailed(
            f"the target can't be met: {found.best.measure} is {found.best.drop:.4g}",
            expected=f"at most {max_drop:g} at {min_speedup:g} times the speed",
            got=f"{found.best.speed.value:.2f} times",
        )


class _Told:
    """Tells of a climb on standard error, as it goes.

    Args:
        folder: where trials are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._most = self._tried = self._quarters = 0
        self._began = 0.0

    def planned(self, most: int) -> None:
        """Say how much may come."""
        self._most = most
        click.echo(
            f"At most {most} trials, each kept as it is made in\n  {self._folder}\n"
            "Interrupted, the same command goes on from there.",
            err=True,
        )

    def begun(self, name: str) -> None:
        """Say what is tried."""
        self._tried += 1
        self._began = perf_counter()
        click.echo(f"{self._tried} of at most {self._most}, {name}:", err=True)

    def ended(self, step: Step) -> None:
        """Say what it gave and how long it took."""
        seconds = perf_counter() - self._began
        told = step.trial.failure or _gains(step)
        click.echo(wrapped(f"  {told}; {seconds:.0f} s"), err=True)

    def explaining(self, share: float) -> None:
        """Say each quarter of the account."""
        if share == 0 or int(4 * share) > self._quarters:
            self._quarters = int(4 * share)
            click.echo(f"the account of what moved the score: {100 * share:.0f} %", err=True)


def _gains(step: Step) -> str:
    """Return what a step gave in quality, speed and size, and what was expected of it."""
    trial, base = step.trial, step.base
    told = f"drop {trial.drop:.4g}, {trial.speed.value:.2f} times faster, {trial.size / 1e6:.2f} MB"
    if base is not None and base.model:
        told += (
            f"; against {base.step}: drop {trial.drop - base.drop:+.4f}, speed "
            f"{trial.speed.value - base.speed.value:+.2f}, {(trial.size - base.size) / 1e6:+.2f} MB"
        )
    if step.promise is not None:
        told += (
            f"; expected {100 * step.promise.saving:.0f} % of the change for "
            f"{step.promise.milliseconds:.2g} ms"
        )
    return told


def _again(model: Path, output: Path, bench: Bench, calibration: str | None) -> str:
    """Return the command that makes the result once more."""
    parts = (
        f"foldmark quantize {model}",
        f"--recipe {output.with_suffix('.toml')}",
        f"--data {calibration} --samples {bench.calibration.limit}",
        "-o OUT",
    )
    return " \\\n    ".join(parts)


def _text(found: Tuning, goal: Goal, output: Path, again: str) -> str:
    best = found.best
    verdict = "The target holds" if found.reached else "The target does not hold"
    parts = [
        f"{verdict} with {best.step!r}: {best.measure} is {best.drop:.4g} (at most "
        f"{goal.max_drop:g}), {best.speed.value:.2f} times faster{_least(goal)}, "
        f"{best.size / 1e6:.2f} MB. "
        f"Written to {output}, its recipe to {output.with_suffix('.toml')}.",
        table(_COLUMNS, [_row(step) for step in found.steps]),
        "In brackets: what it changed of the step that it started from.",
    ]
    expected = [step for step in found.steps if step.promise is not None]
    parts += [f"{step.trial.step}: {_expected(step)}" for step in expected]
    if found.repairs:
        parts.append(
            "Repairs, most saving per millisecond first, as the account expected them\n"
            + table(_REPAIR_COLUMNS, [_repair(each, best) for each in found.repairs[:_REPAIRS]])
        )
    failed = [trial for trial in found.trials if trial.failure]
    parts += [f"{trial.step}: {trial.failure}" for trial in failed]
    if found.blame:
        why = "It is slower than float" if found.reached else "What holds it back"
        parts.append(f"{why}: {', '.join(found.blame)}.")
    if 0 <= goal.max_drop < best.known_to:
        parts.append(
            f"On these samples the drop is known to ±{best.known_to:.2g}: a target of "
            f"{goal.max_drop:g} is met or missed by chance; more samples would tell."
        )
    if goal.max_drop < 0 and not found.reached:
        parts.append(
            "A drop below zero asks for more than float gives: quantizing gains by chance."
        )
    told = "\n\n".join(wrapped(part) for part in parts)
    # Not wrapped: a path must stay whole to be copied.
    return f"{told}\n\nMade again, byte for byte, by\n  {again}"


def _least(goal: Goal) -> str:
    return f" (at least {goal.min_speedup:g})" if goal.min_speedup else ""


_COLUMNS = ("step", "drop", "times faster", "MB")


def _row(step: Step) -> tuple[str, ...]:
    trial, base = step.trial, step.base
    if trial.failure:
        return (trial.step, "-", "-", "-")
    drop, speed, size = f"{trial.drop:.4f}", f"{trial.speed.value:.2f}", f"{trial.size / 1e6:.2f}"
    if base is not None and base.model:
        drop += f" ({trial.drop - base.drop:+.4f})"
        speed += f" ({trial.speed.value - base.speed.value:+.2f})"
        size += f" ({(trial.size - base.size) / 1e6:+.2f})"
    return (trial.step, drop, speed, size)


_REPAIR_COLUMNS = ("repair", "of the change", "ms a run", "in the result")
_REPAIRS = 10  # that are listed


def _repair(repair: Repair, best: Trial) -> tuple[str, ...]:
    taken = repair.change in (*best.recipe.overrides, *best.recipe.ranges, *best.recipe.codes)
    saving, cost = f"{100 * repair.saving:.1f} %", f"{repair.milliseconds:.2g}"
    return (repair.words, saving, cost, "yes" if taken else "")


def _expected(step: Step) -> str:
    promise, trial, base = step.promise, step.trial, step.base
    assert promise is not None
    told = (
        f"the account expected {100 * promise.saving:.0f} % less change for "
        f"{promise.milliseconds:.2g} ms a run"
    )
    if base is None or not trial.model or base.drop <= 0:
        return f"{told}."
    less = 1 - trial.drop / base.drop
    return f"{told}; the drop {'fell' if less >= 0 else 'rose'} by {100 * abs(less):.0f} %."


def _document(found: Tuning) -> dict[str, object]:
    return {
        "schema": "foldmark.tune/1",
        "reached": found.reached,
        "best": found.best.step,
        "recipe": recipe_text(found.best.recipe),
        "blame": list(found.blame),
        "repairs": [
            {"repair": each.words, "saving": each.saving, "milliseconds": each.milliseconds}
            for each in found.repairs
        ],
        "trials": [
            {
                "step": trial.step,
                "drop": trial.drop if trial.model else None,
                "measure": trial.measure,
                "known_to": trial.known_to,
                "speed": {
                    "value": trial.speed.value,
                    "low": trial.speed.low,
                    "high": trial.speed.high,
                },
                "bytes": trial.size,
                "failure": trial.failure,
                "base": step.base.step if step.base is not None else None,
                "expected": None if step.promise is None else asdict(step.promise),
            }
            for step in found.steps
            for trial in (step.trial,)
        ],
    }
