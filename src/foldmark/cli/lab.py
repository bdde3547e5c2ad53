"""`foldmark lab`: the hands-on course, and the grader that checks it code by code."""

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from foldmark.errors import BadInput, CheckFailed
from foldmark.lab import files, web
from foldmark.lab.exercise import Step
from foldmark.lab.grade import check_load, grade
from foldmark.lab.report import Tone, gradescope, lines, to_json
from foldmark.lab.sandbox import Stop, Stopped
from foldmark.lab.steps import STEPS
from foldmark.lab.words import Language, Words, from_locale

_LANGUAGES = click.Choice([language.value for language in Language])
_LONG = 4  # steps that take long enough for a progress bar
_COLOURS = {Tone.GOOD: "green", Tone.BAD: "red"}


@click.group(name="lab")
def command() -> None:
    """Fold by hand: a course in plain Python, and a grader that checks every code.

    Sixteen steps, from two rounding rules to the straight-through gradient, in English, Korean
    or Japanese. `start` writes the course, `check` calls your functions with fresh inputs, and
    `page` draws the first steps to play with.
    """


@command.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--lang", type=_LANGUAGES, help="Language; without it, that of your locale.")
def start(folder: Path, lang: str | None) -> None:
    """Write the course and an empty quant.py into DIR."""
    language = Language(lang) if lang else from_locale()
    files.start(folder, language)
    words = Words(language)
    click.echo(words.say("check", "started", folder=str(folder)))
    click.echo(words.say("check", "start_next", file=str(folder / "quant.py")))


@command.command()
@click.argument("file", metavar="[QUANT.PY]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--step", "numbers", multiple=True, type=click.IntRange(1, len(STEPS)), help="Only this step."
)
@click.option("--seed", type=click.IntRange(0), help="Draw the inputs of an earlier run again.")
@click.option("--lang", type=_LANGUAGES, help="Language; without it, that of `start`.")
@click.option("--json", "json_file", metavar="FILE", help="Also write the grade as JSON (- here).")
@click.option(
    "--gradescope", "gradescope_file", metavar="FILE", help="Also write Gradescope's results.json."
)
def check(  # noqa: PLR0917  (click hands over every option by name)
    file: Path | None,
    numbers: tuple[int, ...],
    seed: int | None,
    lang: str | None,
    json_file: str | None,
    gradescope_file: str | None,
) -> int:
    """Call the functions in QUANT.PY (default: quant.py here) and compare every code.

    The file runs in a process of its own, without network or files. Exit code 0 when all steps
    asked for pass, 1 when not, 2 when the file can't be used.
    """
    path = _quant_file(file)
    language = Language(lang) if lang else files.remembered(path) or from_locale()
    words = Words(language)
    source = files.read_source(path)
    _check_usable(path, check_load(source), words)
    steps = [step for step in STEPS if not numbers or step.number in numbers]
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    with _progress(len(steps)) as advance:
        result = grade(source, steps, chosen, before_each=advance)
    if json_file != "-":
        for line in lines(result, words):
            click.echo(_coloured(line.text, line.tone), color=_colour())
    if json_file:
        _write(json_file, to_json(result, words))
    if gradescope_file:
        _write(gradescope_file, gradescope(result, words))
    return 0 if result.passed else CheckFailed.exit_code


@command.command()
@click.argument("file", metavar="OUT.HTML", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lang", type=_LANGUAGES, help="Language; without it, that of your locale.")
def page(file: Path, lang: str | None) -> None:
    """Write one page to fold eight values on: no network, no other file."""
    language = Language(lang) if lang else from_locale()
    files.write_text(file, web.page(language))
    click.echo(Words(language).say("page", "written", file=str(file)))


@contextmanager
def _progress(count: int) -> Iterator[Callable[[Step], None]]:
    """Show on a terminal which step is being graded; in a pipe, show nothing."""
    if not sys.stderr.isatty() or count < _LONG:
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  (the course runs without it, too)
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=count)

        def show(step: Step) -> None:
            bar.update(task, advance=1, description=step.name)

        yield show


def _quant_file(file: Path | None) -> Path:
    path = file or Path("quant.py")
    return path / "quant.py" if path.is_dir() else path


def _check_usable(path: Path, load: Stopped | None, words: Words) -> None:
    """Raise BadInput when the file does not load; a refused import is left to the steps."""
    if load is None or load.stop == Stop.REFUSED_IMPORT:
        return
    key = load.stop.value if words.has("load", load.stop.value) else "other"
    detail = load.detail or load.stop.value
    reason = words.say("load", key, detail=detail, line=load.line)
    raise BadInput(f"{words.say('check', 'unusable')}: {reason}", where=str(path))


def _coloured(text: str, tone: Tone) -> str:
    return click.style(text, fg=_COLOURS.get(tone), dim=tone == Tone.FAINT or None)


def _colour() -> bool | None:
    """Return False where NO_COLOR is set; else let click decide by whether this is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def _write(file: str, data: dict[str, Any]) -> None:
    text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    if file == "-":
        click.echo(text, nl=False)
    else:
        files.write_text(Path(file), text)
