"""`foldmark rules`: the catalogue, a file of recorded answers put to it, or two rules compared."""

import json
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from foldmark.cli.rules_document import catalogue_document, check_document, comparison_document
from foldmark.cli.rules_text import catalogue_text, check_text, comparison_text, entry_text
from foldmark.compare.check import FileCheck, check_file
from foldmark.errors import BadInput, CheckFailed, FileUnreadable
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Entry

__all__ = ["command"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[RULE [OTHER]]")
@click.option(
    "--check",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Put recorded answers (JSON) to the catalogue; exit code 1 unless all agree.",
)
@click.option("--json", "json_file", metavar="FILE", help='Write it as JSON ("-": stdout).')
def command(names: tuple[str, ...], file: Path | None, json_file: str | None) -> None:
    """List the rules of the field's tools, explain one, or compare two.

    A rule is what a tool does to a group of numbers: how it finds the scale and the zero point,
    in which order and precision it divides, adds and rounds. Two tools that give different codes
    for the same weights differ in a field of their rules.

    \b
    foldmark rules                         the catalogue
    foldmark rules GGML_Q8_0               one rule, field by field
    foldmark rules GGML_Q8_0 QUANTO_INT8   where two part, worked by hand
    foldmark rules --check answers.json    recorded answers, by both engines
    """
    if file is not None:
        if names:
            raise BadInput("--check takes a file and no rules", got=" ".join(names))
        _check(check_file(file), json_file)
        return
    if len(names) > 2:
        raise BadInput("too many rules", got=str(len(names)), expected="one or two")
    entries = [_entry(name) for name in names]
    match entries:
        case []:
            _show(catalogue_text(), catalogue_document(), json_file)
        case [entry]:
            _show(entry_text(entry), catalogue_document([entry]), json_file)
        case [first, second]:
            _show(comparison_text(first, second), comparison_document(first, second), json_file)


def _check(check: FileCheck, json_file: str | None) -> None:
    _show(check_text(check), check_document(check), json_file)
    if not check.all_agree:
        raise CheckFailed("not every vector agrees", where=str(check.path))


def _entry(name: str) -> Entry:
    spelled = name.upper().replace("-", "_").removeprefix("RULES.")
    if spelled in CATALOGUE:
        return CATALOGUE[spelled]
    near = get_close_matches(spelled, CATALOGUE, n=1, cutoff=0.4)
    todo = f"did you mean {near[0]}?" if near else "`foldmark rules` lists them"
    raise BadInput("no rule has this name", got=name, todo=todo)


def _show(text: str, document: dict[str, Any], json_file: str | None) -> None:
    """Print the text, and write the document; with "-" the document alone is printed."""
    if json_file == "-":
        click.echo(json.dumps(document, indent=2))
        return
    if json_file is not None:
        _write(Path(json_file), json.dumps(document, indent=2) + "\n")
    click.echo(text)


def _write(path: Path, content: str) -> None:
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(content, encoding="utf-8")
        os.replace(beside, path)  # noqa: PTH105  (the same call on every platform)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise FileUnreadable(error.strerror or "can't be written", where=str(path)) from None
