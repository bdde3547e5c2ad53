"""The course's texts in Korean, Japanese and English: which language, and what it says."""

import os
import tomllib
import unicodedata
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Language", "Words", "chapter", "from_locale", "introduction", "pad", "show"]

_HERE = Path(__file__).parent
_SHOWN_ITEMS = 12


class Language(Enum):
    """A language of the course, by its two letters."""

    EN = "en"
    KO = "ko"
    JA = "ja"


def from_locale(environment: Mapping[str, str] | None = None) -> Language:
    """Return the language that the environment asks for; English where it is none of the three."""
    variables = os.environ if environment is None else environment
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = variables.get(name, "")
        if value:
            return next(
                (one for one in Language if value.lower().startswith(one.value)), Language.EN
            )
    return Language.EN


class Words:
    """What the grader says in one language."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._sections = _sections(language)

    def say(self, section: str, key: str, /, **fields: Any) -> str:
        """Return a sentence with its fields filled in; numbers are shown as Python writes them."""
        return self._sections[section][key].format(
            **{name: show(value) for name, value in fields.items()}
        )

    def section(self, name: str) -> dict[str, str]:
        """Return all the sentences of one section, their fields not yet filled in."""
        return dict(self._sections[name])

    def has(self, section: str, key: str) -> bool:
        """Say whether there is such a sentence."""
        return key in self._sections[section]

    def docstring(self, function: str) -> str:
        """Return what a function is to do."""
        return self._sections["functions"][function].strip()

    def title(self, number: int, name: str) -> str:
        """Return the title of a step: the first line of its chapter."""
        first = chapter(number, name, self.language).partition("\n")[0]
        return first.lstrip("# ").partition(". ")[2]


@cache
def _sections(language: Language) -> dict[str, dict[str, str]]:
    path = _HERE / "messages" / f"{language.value}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def chapter(number: int, name: str, language: Language) -> str:
    """Return the Markdown text of one step."""
    path = _HERE / "course" / f"{number:02}-{name}.{language.value}.md"
    return path.read_text(encoding="utf-8")


def introduction(language: Language) -> str:
    """Return the Markdown text that stands before the steps."""
    return (_HERE / "course" / f"00-introduction.{language.value}.md").read_text(encoding="utf-8")


def show(value: Any) -> str:
    """Return a value as it is read in a sentence: Python's notation, long lists cut short."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        shown = [show(item) if not isinstance(item, str) else repr(item) for item in value]
        if len(shown) > _SHOWN_ITEMS:
            shown = [*shown[: _SHOWN_ITEMS - 2], "...", shown[-1]]
        return "[" + ", ".join(shown) + "]"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def pad(text: str, width: int) -> str:
    """Pad a text to a width in terminal columns; Korean and Japanese letters take two."""
    columns = sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    return text + " " * max(0, width - columns)
