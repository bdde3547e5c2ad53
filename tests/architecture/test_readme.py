"""The README keeps its promises: commands exist, links lead somewhere, figures print."""

import re
from pathlib import Path

from click.testing import CliRunner

from foldmark.cli.demo import command
from foldmark.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_table_lists_every_command() -> None:
    assert set(re.findall(r"^\| `foldmark (\w+)`", README, re.MULTILINE)) == set(COMMANDS)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_ci_runs_the_readmes_test_command() -> None:
    (line,) = re.findall(r"^    (pip install '.\[test\]' .*?)\s+#", README, re.MULTILINE)
    assert line in (ROOT / ".ci" / "run").read_text()


def test_the_demo_prints_what_the_readme_shows() -> None:
    """Other processors round otherwise in the last digits, so the story is compared."""
    printed = CliRunner().invoke(command, catch_exceptions=False).output
    (shown,) = re.findall(r"```\n(An attention.*?)```", README, re.DOTALL)
    story = (
        r"2\s+of 113 sites",
        r"\n1\. (\S+):",
        r"\n2\. (\S+):",
        r"holds (-10),",
        r"share 1 of 256",
        r"float +\d+ of 597 +(\d+)",
        r"\n  int8 +\d+ of 597 +(\d+)",
        r"sites in float +\d+ of 597 +(\d+)",
    )
    for line in story:
        assert re.findall(line, printed) == re.findall(line, shown) != []
