"""The proof as text for a terminal and as Markdown for a pull request."""

import textwrap
from collections.abc import Sequence
from dataclasses import astuple

from foldmark.proof.sentences import (
    bound_sentence,
    integer_sentence,
    saturation_sentence,
    signed_sentence,
    verdict,
)
from foldmark.proof.size import Role
from foldmark.proof.verify import Proof
from foldmark.runtimes.timing import Interval

__all__ = ["markdown", "ratio_cell", "table", "text", "wrapped"]

_WIDTH = 80
_COLUMN = 18  # the widest name of a score that leaves room for the other columns
_NARROWEST = 5  # the first column is not cut further
Row = tuple[str, ...]
Table = tuple[Row, list[Row]]


def table(header: Row, rows: Sequence[Row], width: int = _WIDTH) -> str:
    """Return rows in columns; the first column is cut so that the table fits the width."""
    columns = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    spare = width - sum(columns[1:]) - 2 * (len(columns) - 1)
    columns[0] = min(columns[0], max(spare, _NARROWEST))
    lines = []
    for row in (header, *rows):
        first = row[0] if len(row[0]) <= columns[0] else row[0][: columns[0] - 1] + "…"
        rest = "".join(f"  {cell:>{n}}" for cell, n in zip(row[1:], columns[1:], strict=True))
        lines.append(f"{first:<{columns[0]}}{rest}".rstrip())
    return "\n".join(lines)


def text(proof: Proof) -> str:
    """Return the whole proof: the verdict, the three claims side by side, then the detail."""
    parts = [
        verdict(proof)[0].upper() + verdict(proof)[1:],
        integer_sentence(proof),
        table(*_claims(proof)),
        "Kernels (one run at the largest batch size)\n" + table(*_kernels(proof)),
        "Bytes\n" + table(*_bytes(proof)),
    ]
    if proof.size.kept_float:
        parts.append("Left in float, and why\n" + table(*_kept(proof)))
    if proof.kernels.unfused:
        parts.append("Quantized, yet run in float\n" + _unfused(proof))
    if proof.kernels.lost:
        parts.append(_lost(proof))
    parts.append("\n".join(_limits(proof)))
    parts.append(_where(proof))
    return "\n\n".join(map(wrapped, parts))


def markdown(proof: Proof) -> str:
    """Return the proof as Markdown tables."""
    sections = [
        f"**{verdict(proof)}**",
        integer_sentence(proof),
        _markdown_table(*_claims(proof)),
        _markdown_table(*_kernels(proof)),
        _markdown_table(*_bytes(proof)),
        _markdown_table(*_kept(proof)) if proof.size.kept_float else "",
        _markdown_table(*_unfused_table(proof)) if proof.kernels.unfused else "",
        _lost(proof) if proof.kernels.lost else "",
        " ".join(_limits(proof)),
        _where(proof),
    ]
    return "\n\n".join(filter(None, sections))


def wrapped(part: str) -> str:
    """Return the part with its long lines broken at spaces; tables are short enough already.

    What follows an indented count ("   4 Mul: ...") goes on under its words.
    """
    return "\n".join(map(_filled, part.split("\n")))


def _filled(line: str) -> str:
    if len(line) <= _WIDTH:
        return line
    words = line.lstrip(" 0123456789,")
    later = " " * (len(line) - len(words)) if line.startswith(" ") else ""
    return textwrap.fill(line, _WIDTH, subsequent_indent=later)


def _markdown_table(header: Row, rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _claims(proof: Proof) -> Table:
    """Size, speed and quality on every line: no claim stands alone."""
    quality = _quality_cells(proof)
    rows: list[Row] = []
    for speed in proof.speeds:
        rows.append(
            (
                str(speed.samples),
                _megabytes(proof.float_size.total),
                _megabytes(proof.size.total),
                _milliseconds(speed.first.value),
                _milliseconds(speed.second.value),
                ratio_cell(speed.ratio),
                quality[1],
            )
        )
    return ("batch", "float MB", "MB", "float ms", "ms", "times faster", quality[0]), rows


def ratio_cell(ratio: Interval) -> str:
    """Return a ratio with its interval, to three digits."""
    value, low, high = (f"{x:.2f}" if x < 9.995 else f"{x:.1f}" for x in astuple(ratio))
    return f"{value} [{low}, {high}]"


def _quality_cells(proof: Proof) -> tuple[str, str]:
    quality = proof.quality
    if quality.score is not None:
        score = quality.score
        half = (score.change.high - score.change.low) / 2
        name = score.name if len(score.name) <= _COLUMN else f"{score.name[: _COLUMN - 1]}…"
        return name, f"{score.quantized_score:.3f} {score.change.value:+.3f}±{half:.3f}"
    if quality.top1_agreement is not None:
        return "same class", f"{100 * quality.top1_agreement.value:.1f} %"
    return "1 - cosine", f"{max(each.cosine for each in quality.outputs):.2e}"


def _kernels(proof: Proof) -> Table:
    kernels = proof.kernels
    total, macs = kernels.seconds or 1.0, sum(each.macs for each in kernels.products) or 1
    rows: list[Row] = [
        (
            each.executor.value,
            str(each.operators),
            f"{100 * each.macs / macs:.1f} %",
            f"{100 * each.seconds / total:.1f} %",
        )
        for each in kernels.shares
    ]
    rows.append(
        ("quantizing, dequantizing", "", "", f"{100 * kernels.conversion_seconds / total:.1f} %")
    )
    rows.append(("everything else", "", "", f"{100 * kernels.other_seconds / total:.1f} %"))
    return ("executed by", "operators", "multiplies", "time"), rows


def _bytes(proof: Proof) -> Table:
    rows: list[Row] = [
        (
            each.role.value,
            f"{each.size:,}",
            f"{100 * each.size / proof.size.total:.1f} %",
            str(each.tensors) if each.role is not Role.GRAPH else "",
        )
        for each in proof.size.lines
    ]
    rows.append(("file", f"{proof.size.total:,}", "100.0 %", ""))
    return ("what", "bytes", "share", "tensors"), rows


def _kept(proof: Proof) -> Table:
    rows: list[Row] = [
        (each.reason, f"{each.size:,}", str(each.tensors)) for each in proof.size.kept_float[:8]
    ]
    return ("reason", "bytes", "tensors"), rows


def _unfused(proof: Proof) -> str:
    return "\n".join(
        f"{each.count:>4} {each.operator}: {each.reason}" for each in proof.kernels.unfused[:12]
    )


def _unfused_table(proof: Proof) -> Table:
    rows: list[Row] = [
        (each.reason, each.operator, str(each.count), f"`{each.example}`")
        for each in proof.kernels.unfused[:12]
    ]
    return ("quantized, yet run in float, because", "operator", "count", "such as"), rows


def _lost(proof: Proof) -> str:
    lost = ", ".join(
        f"{each.operator} ({each.in_float} -> {each.in_quantized})" for each in proof.kernels.lost
    )
    return f"Fusions of the float model that are gone: {lost}."


def _limits(proof: Proof) -> list[str]:
    """Return what this machine and others make of the model, a sentence each."""
    said = (bound_sentence(proof), signed_sentence(proof), saturation_sentence(proof))
    return [each for each in said if each]


def _where(proof: Proof) -> str:
    found = proof.machine.instructions
    marked = " (random, not real data)" if proof.data_is_random else ""
    return (
        f"{proof.runtime}, {proof.threads} thread{'s' * (proof.threads > 1)}, "
        f"{proof.machine.processor}, {', '.join(found) or 'instructions not known'}; "
        f"{proof.quality.samples} samples of {proof.data}{marked}."
    )


def _megabytes(size: int) -> str:
    if size < 1e5:
        return f"{size / 1e6:.2g}"
    return f"{size / 1e6:.2f}" if size < 1e8 else f"{size / 1e6:.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"
