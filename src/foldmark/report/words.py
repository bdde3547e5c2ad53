"""Numbers and names as reports print them."""

from textwrap import fill

from foldmark.graphs.sites import Site, SiteKind

__all__ = ["counted", "fitted", "number", "percent", "printable", "site_title", "wrapped"]

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


def counted(count: int, noun: str) -> str:
    """Return "1 site", "12 sites"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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


def site_title(site: Site) -> str:
    """Return where a site is, in words: module path and what it is there.

    "encoder/layer.3/output/dense MatMul output", "embed weight", else the tensor's own name.
    """
    if site.kind in (SiteKind.WEIGHT, SiteKind.BIAS):
        return f"{site.layer} {site.kind.value}" if site.layer else site.name
    name = site.name
    for ending in _GENERIC:
        name = name.removesuffix(ending)
    return name.lstrip("/")


def wrapped(text: str, width: int = 80, *, first: str = "", later: str = "") -> str:
    """Return the text in lines of `width` columns; a number keeps its per cent sign.

    first    what begins the first line
    later    what begins the others
    """
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = fill(kept, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")
