"""The learner's folder: writing it, remembering its language, and reading what is in it."""

import json
import os
import tempfile
from pathlib import Path

from foldmark.errors import BadInput, FileUnreadable, OutputExists
from foldmark.lab.steps import STEPS
from foldmark.lab.words import Language, Words, chapter, introduction

__all__ = ["read_source", "readme", "remembered", "start", "template", "write_text"]

MEMORY = ".foldmark-lab.json"
MAX_SOURCE_BYTES = 1 << 20


def start(folder: Path, language: Language) -> list[Path]:
    """Write the course and the empty quant.py into a folder, and remember the language there.

    Raises OutputExists when either file is there already, BadInput when it is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput("not a folder", where=str(folder), todo="give a folder's name")
    texts = {
        "README.md": readme(language),
        "quant.py": template(language),
        MEMORY: json.dumps({"language": language.value}) + "\n",
    }
    for name in ("README.md", "quant.py"):
        if (folder / name).exists():
            raise OutputExists(
                "is there already and would be overwritten",
                where=str(folder / name),
                todo="start in another folder, or move it away",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput("can't be made", where=str(folder), got=error.strerror or "") from None
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def readme(language: Language) -> str:
    """Return the whole course as one Markdown text."""
    parts = [introduction(language), *(chapter(s.number, s.name, language) for s in STEPS)]
    return "\n".join(part.strip() + "\n" for part in parts)


def template(language: Language) -> str:
    """Return quant.py as the learner finds it: signatures, docstrings, nothing solved."""
    words = Words(language)
    parts = []
    for step in STEPS:
        title = words.title(step.number, step.name)
        parts.append(f"# {words.say('check', 'step_line', number=step.number, title=title)}\n")
        for function in step.functions:
            text = words.docstring(function.name)
            body = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
            ending = "\n    " if "\n" in text else ""
            parts.append(
                f'{function.signature}\n    """{body.lstrip()}{ending}"""\n'
                f"    raise NotImplementedError\n"
            )
    return "\n\n".join(parts)


def remembered(file: Path) -> Language | None:
    """Return the language that `start` remembered beside the file, if it did."""
    try:
        text = (file.parent / MEMORY).read_text(encoding="utf-8")
        return Language(json.loads(text)["language"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_source(file: Path) -> str:
    """Return the learner's source. Raises FileUnreadable or BadInput, naming the file."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FileUnreadable(
            "can't be read",
            where=str(file),
            got=error.strerror or "",
            todo="give the path of quant.py, or make one with `foldmark lab start DIR`",
        ) from None
    if len(data) > MAX_SOURCE_BYTES:
        raise BadInput("too large for a quant.py", where=str(file), got=f"{len(data)} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text", where=str(file)) from None


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place and move it there, so that it is never half written.

    Raises BadInput when the place can't be written to.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".foldmark-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise BadInput("can't be written", where=str(path), got=error.strerror or "") from None
