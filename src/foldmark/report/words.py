"""Numbers and names as reports print them."""

import re
from collections import Counter
from collections.abc import Iterable
from textwrap import fill

from foldmark.graphs.sites import Site, SiteKind

__all__ = [
    "byte_text",
    "counted",
    "fitted",
    "number",
    "operator_title",
    "percent",
    "printable",
    "site_title",
    "site_titles",
    "wrapped",
]

_GENERIC = ("_output_0", "_QuantizeLinear", "_DequantizeLinear", "_Output")


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, without an exponent where it is short."""
    if value == 0:
        return "0"
    size = abs(value)
    if 1e-4 <= size < 10**digits:
        text = f"{value:.{digits}g}"
        return text if "e" not in text else f"{value:.0f}"
    if 10**digits <= size < 10 ** (digits + 3):
        return f"{value:,.0f}"
    return f"{value:.{digits - 2}e}"


def percent(share: float, places: int = 1) -> str:
    """Return a share of the whole in per cent."""
    size = abs(share) * 100
    if size >= 1e5:
        return f"{share * 100:.0e} %"
    if size >= 1000:
        return f"{share * 100:,.0f} %"
    return f"{share * 100:.{places}f} %"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return "1 site", "12 sites"; `nouns` is the plural where an s alone does not make it."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def byte_text(count: int) -> str:
    """Return "704 bytes", "97.8 MB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(count, "byte")


def fitted(text: str, width: int) -> str:
    """Return the text in `width` columns, its middle left out where it is longer.

    The first part of a path goes first, unless it has a number: what sets "encoder/layer.3/dense"
    apart from others is what follows.
    """
    first, slash, rest = text.partition("/")
    if len(text) > width and slash and not any(map(str.isdigit, first)):
        text = f"…/{rest}"
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def printable(name: str) -> str:
    """Return a name from a file with nothing in it that could move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def site_titles(sites: Iterable[Site]) -> dict[str, str]:
    """Return what to call each site, by its name; sites that would be called alike get theirs."""
    titles = {site.name: site_title(site) for site in sites}
    often = Counter(titles.values())
    return {
        name: f"{title} ({name})" if often[title] > 1 and not title.endswith(f"({name})") else title
        for name, title in titles.items()
    }


def site_title(site: Site) -> str:
    """Return where a site is, in words: module path and what it is there.

    "encoder/layer.3/output/dense/MatMul", "embed weight", "blocks.1/Add (val_98)", "MatMul
    weight (onnx::MatMul_12)", else the tensor's own name.
    """
    name = site.name
    for ending in _GENERIC:
        name = name.removesuffix(ending)
    if site.kind in (SiteKind.WEIGHT, SiteKind.BIAS):
        if site.layer:
            return f"{site.layer} {site.kind.value}"
        return f"{site.operator} {site.kind.value} ({name})" if _is_generated(name) else name
    if "/" in name or not site.maker or not (site.layer or _is_generated(name)):
        return name.lstrip("/")
    return f"{operator_title(site.maker, site.layer)} ({name})"


def operator_title(operator: str, layer: str, node: str = "") -> str:
    """Return where an operator is: its module path and type; its name where that is a path."""
    if "/" in node:
        return node.strip("/")
    where = f"{layer}/{operator}" if layer else operator
    return where if layer or not node else node


def _is_generated(name: str) -> bool:
    """Return True for a name that counts: "onnx::MatMul_9772", "val_98", "217"."""
    return re.fullmatch(r"onnx::\w+|\w*?_?\d+", name) is not None


def wrapped(text: str, width: int = 80, *, first: str = "", later: str = "") -> str:
    """Return the text in lines of `width` columns; a number keeps its per cent sign.

    first    what begins the first line
    later    what begins the others
    """
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = fill(kept, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")
