"""Right answers to the course in different styles: a whole one, and variations on parts of it."""

from pathlib import Path

HERE = Path(__file__).parent
PLAIN = (HERE / "plain.py").read_text(encoding="utf-8")
# A variation is the whole course with some functions written in another way.
STYLES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(HERE.glob("*.py"))
    if path.stem != "__init__"
}


def whole(style: str) -> str:
    """Return a whole course in the given style."""
    return PLAIN if style == "plain" else f"{PLAIN}\n\n{STYLES[style]}"
