"""A comparison as text for one screen of 80 columns."""

import textwrap

from foldmark.cli.inspect_text import cut, printable
from foldmark.compare.account import describe_rule, open_fields
from foldmark.compare.diff import Diff, TensorDiff
from foldmark.compare.difference import FieldDifference
from foldmark.compare.traces import find_traces
from foldmark.formats.stored import StoredTensor

__all__ = ["text"]

_WIDTH = 80
_LARGEST = 5
_LISTED = 4


def text(diff: Diff) -> str:
    """Return the verdict, what differs, each side's rule, the largest differences, the rest."""
    parts = [_verdict(diff), _fields(diff), _rules(diff), _first_code(diff), _largest(diff)]
    parts.append(_left_over(diff))
    return "\n\n".join(part for part in parts if part)


def _wrap(line: str, indent: str = "") -> str:
    return textwrap.fill(
        printable(line), _WIDTH, initial_indent=indent, subsequent_indent=indent + "  "
    )


def _verdict(diff: Diff) -> str:
    changed = [t for t in diff.tensors if t.distance > 0]
    count = len(diff.tensors)
    if not changed:
        return _wrap(f"A and B hold the same numbers in all {count} weights that both have.")
    sentence = f"A and B differ in {len(changed)} of {count} weights that both have"
    fields = _summed(diff)
    if fields:
        sentence += ": " + ", ".join(dict.fromkeys(f.field for f, _ in fields))
    elif diff.original is None:
        sentence += "; name the float model (--float) to have the rules found"
    else:
        sentence += ", in no decision that these weights can show"
    return _wrap(sentence + ".")


def _summed(diff: Diff) -> list[tuple[FieldDifference, int]]:
    """Join equal differences of the searched weights, the commonest first."""
    counts: dict[tuple[str, str, str], tuple[FieldDifference, int]] = {}
    for tensor in diff.tensors:
        for field in tensor.fields:
            key = (field.field, field.left, field.right)
            first, number = counts.get(key, (field, 0))
            counts[key] = (first, number + 1)
    return sorted(counts.values(), key=lambda item: -item[1])


def _fields(diff: Diff) -> str:
    fields = _summed(diff)
    if not fields:
        return ""
    searched = sum(t.left is not None and t.right is not None for t in diff.tensors)
    lines = [f"what differs (rules searched in {searched} weights, one scheme after the other)"]
    for field, number in fields:
        lines.append(_wrap(f"{field.field} ({number} of {searched})", "  "))
        lines.append(_wrap(f"A: {field.left}", "    "))
        lines.append(_wrap(f"B: {field.right}", "    "))
        if field.alternatives:
            lines.append(_wrap("or instead: " + "; ".join(field.alternatives), "    "))
        if field.evidence:
            lines.append(_wrap(field.evidence, "    "))
    return "\n".join(lines)


def _rules(diff: Diff) -> str:
    if diff.original is None:
        return _traces(diff)
    lines = []
    for name in ("A", "B"):
        seen: dict[str, str] = {}
        for tensor in diff.tensors:
            fit = tensor.left if name == "A" else tensor.right
            if fit is not None:
                undecided = open_fields(fit)
                words = describe_rule(fit)
                if undecided:
                    words += ". Open: " + "; ".join(undecided)
                seen.setdefault(f"{fit.layout.packing}{fit.layout.number_format}", words)
        lines += [_wrap(f"{name}: {words}", "  ") for words in list(seen.values())[:2]]
    return "\n".join(["how each side was made", *lines]) if lines else ""


def _traces(diff: Diff) -> str:
    """Without the float model: what codes and scales show of themselves."""
    lines = []
    for name, side in (("A", _of(diff, 0)), ("B", _of(diff, 1))):
        said = {find_traces(t).sentence(): t for t in side[:_LISTED]}
        lines += [_wrap(f"{name}: {words}", "  ") for words in said if words]
    return "\n".join(["what codes and scales show, the float weights unseen", *lines])


def _of(diff: Diff, side: int) -> list[StoredTensor]:
    tensors = [t.match.left if side == 0 else t.match.right[0] for t in diff.tensors]
    return [t for t in tensors if t.layout.is_quantized]


def _first_code(diff: Diff) -> str:
    for tensor in diff.tensors:
        codes = tensor.codes
        if codes is None or codes.index is None:
            continue
        index = ", ".join(str(i) for i in codes.index)
        sentence = (
            f"{codes.count:,} of {codes.total:,} codes of {tensor.match.left.name} differ; the "
            f"first at [{index}]: "
        )
        if codes.weight is None or codes.left_exact is None or codes.right_exact is None:
            return _wrap(f"{sentence}A has {codes.left}, B has {codes.right}.")
        return _wrap(
            f"{sentence}the weight {codes.weight:.6g} is {codes.left_exact:.6g} steps of A's scale "
            f"-> {codes.left}, and {codes.right_exact:.6g} of B's -> {codes.right}."
        )
    return ""


def _largest(diff: Diff) -> str:
    changed = sorted((t for t in diff.tensors if t.distance > 0), key=_weight_error, reverse=True)
    if not changed:
        return ""
    lines = [f"{'largest differences (root mean square)':<44}{'A to B':>12}"]
    if diff.original is not None:
        lines[0] += f"{'A error':>12}{'B error':>12}"
    for tensor in changed[:_LARGEST]:
        line = f"{cut(tensor.match.left.name, 43):<44}{tensor.distance:>12.3%}"
        if tensor.left_error is not None and tensor.right_error is not None:
            line += f"{tensor.left_error:>12.3%}{tensor.right_error:>12.3%}"
        lines.append(line)
    if len(changed) > _LARGEST:
        lines.append(f"... and {len(changed) - _LARGEST} more")
    return "\n".join(lines)


def _weight_error(tensor: TensorDiff) -> float:
    if tensor.left_error is None or tensor.right_error is None:
        return tensor.distance
    return abs(tensor.left_error - tensor.right_error)


def _left_over(diff: Diff) -> str:
    lines = []
    for words, names in (
        ("only in A", [t.name for t in diff.left_only]),
        ("only in B", [t.name for t in diff.right_only]),
        ("not found in the float model", list(diff.without_original)),
    ):
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            lines.append(_wrap(f"{words}: " + ", ".join(names[:_LISTED]) + more))
    return "\n".join(lines)
