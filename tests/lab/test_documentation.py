"""docs/lab.md tells the truth: options, limits, reasons and fields are those of the code."""

import re
from pathlib import Path

from foldmark.cli.lab import command
from foldmark.lab.compare import Fault
from foldmark.lab.sandbox import Limits, Stop

TEXT = (Path(__file__).parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")


def test_every_command_and_option_is_written_down() -> None:
    for name, one in command.commands.items():  # type: ignore[attr-defined]
        assert f"foldmark lab {name}" in TEXT
        for parameter in one.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    assert option in TEXT, option


def test_every_reason_is_written_down() -> None:
    reasons = {stop.value for stop in Stop} | {fault.value for fault in Fault} | {"changed"}
    assert reasons <= set(re.findall(r"`(\w+)`", TEXT))


def test_the_limits_are_those_of_the_code() -> None:
    limits = Limits()
    assert f"{limits.cpu_seconds} seconds" in " ".join(TEXT.split())
    assert f"{limits.memory_bytes >> 20} MiB" in TEXT
    assert f"{limits.printed_bytes >> 10} KiB" in TEXT
