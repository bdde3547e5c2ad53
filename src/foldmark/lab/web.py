"""One self-contained page on which a reader folds eight values by hand and sees what moves."""

import html
import json
from pathlib import Path
from string import Template

from foldmark.lab.words import Language, Words

__all__ = ["page"]

_HERE = Path(__file__).parent / "page"
# What the script fills in while the page is used; the rest is filled in here.
_FOR_THE_SCRIPT = ("value", "scale", "summary", "exact", "grows", "buried")


def page(language: Language) -> str:
    """Return the page's HTML: no network, no other file."""
    words = Words(language)
    texts = words.section("page")
    strings = json.dumps({key: texts[key] for key in _FOR_THE_SCRIPT}, ensure_ascii=False)
    fields = {key: html.escape(text) for key, text in texts.items()}
    return Template(_read("page.html")).substitute(
        fields,
        language=language.value,
        css=_read("page.css"),
        # A closing tag inside a string would end the script element.
        strings=strings.replace("<", "\\u003c"),
        arithmetic=_read("arithmetic.js"),
        script=_read("page.js"),
    )


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
