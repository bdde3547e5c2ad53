"""The `foldmark` command: finds the subcommand, runs it, and turns errors into one line."""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from foldmark import __version__
from foldmark.errors import FoldmarkError

# command -> (module that defines it as `command`, the line that --help shows).
# A table, so that `foldmark --help` imports no command and starts at once.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("foldmark.cli.demo", "See the main job done on a small model inside the package."),
    "explain": ("foldmark.cli.explain", "Where did the accuracy go? An account that adds up."),
    "inspect": ("foldmark.cli.inspect", "What is in this file? Schemes, scales, codes, bytes."),
    "diff": ("foldmark.cli.diff", "Two tools, one model: which rule differs, and where first."),
    "calibrate": ("foldmark.cli.calibrate", "Learn the ranges of a model's activations from data."),
    "quantize": ("foldmark.cli.quantize", "Quantize a float model and say what was left, and why."),
    "tune": ("foldmark.cli.tune", "Quantize as far as a score allows, step by step."),
    "verify": ("foldmark.cli.verify", "Is it smaller, faster and as good? Measured together."),
    "rules": ("foldmark.cli.rules", "The rules of the field's tools: list, compare, check."),
    "lab": ("foldmark.cli.lab", "Fold by hand: a course in plain Python, checked code by code."),
}

_HELP = """\
Says where quantization cost a neural network its accuracy.

A model is quantized with one line and its accuracy falls. foldmark says which tensor did it,
which element set the scale, how the error travelled to the output, and what each cure would
buy; the entries of its account sum to what was measured.
"""

_EPILOG = """\
Exit codes: 0 done; 1 a check you asked for failed; 2 the input can't be used.
Colour only on a terminal; NO_COLOR is respected.
"""


class _CommandTable(click.Group):
    """A group whose commands are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = import_module(module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_repeated(command, click.Context(command, ctx, name), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        if not COMMANDS:
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _refuse_repeated(command: click.Command, ctx: click.Context, arguments: list[str]) -> None:
    """Raise UsageError for an option given twice that takes one value: click keeps the last."""
    _, _, order = command.make_parser(ctx).parse_args(list(arguments))
    given = [each for each in order if isinstance(each, click.Option)]
    for option in given:
        takes_many = option.multiple or option.is_flag or option.count
        if given.count(option) > 1 and not takes_many:
            raise click.UsageError(f"{option.opts[-1]} is given twice and takes one value", ctx)


@click.group(
    cls=_CommandTable,
    help=_HELP,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="foldmark")
def program() -> None:
    """Hold the commands together; each does its own work."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; no exception leaves but a defect of ours."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return _run(arguments)
        except (MemoryError, OSError) as error:
            # A full disk, a device that fails: the machine's, not a defect of ours.
            click.echo(f"foldmark: {_refused(error)}", err=True)
            return 2


def _refused(error: MemoryError | OSError) -> str:
    """Return what the machine refused, in one line."""
    if isinstance(error, MemoryError):
        said = f": {error}" if str(error) else ""
        return f"not enough memory{said}. Give fewer samples or smaller batches"
    _drop_what_is_unwritten()
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{(error.strerror or str(error)).lower()}"


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without the place in our code that it came from."""
    click.echo(f"foldmark: warning: {message}", err=True)


def _run(arguments: Sequence[str]) -> int:
    try:
        result = program.main(args=list(arguments), prog_name="foldmark", standalone_mode=False)
        sys.stdout.flush()
    except FoldmarkError as error:
        click.echo(f"foldmark: {error.sentence()} [{error.code}]", err=True)
        return error.exit_code
    except click.exceptions.Abort:
        click.echo("foldmark: interrupted; nothing half written", err=True)
        return 130
    except click.ClickException as error:
        _show_misuse(error)
        return 2
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except BrokenPipeError:
        # The reader (head, less) went away: not a fault.
        _drop_what_is_unwritten()
        return 0
    return result if isinstance(result, int) else 0


def _show_misuse(error: click.ClickException) -> None:
    """Print in one line what was wrong with the words given, and where to read how they go."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    said = " ".join(error.format_message().split()).rstrip(".?")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    where = f"; see {ctx.command_path} --help" if ctx else ""
    click.echo(f"foldmark: {said[:1].lower()}{said[1:]}{where}", err=True)


def _drop_what_is_unwritten() -> None:
    """Let what could not be written go: Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run `foldmark` with the arguments of this process."""
    sys.exit(run(sys.argv[1:]))
