"""A comparison as text: one screen of 80 columns, or everything."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foldmark.compare.account import describe_rule, open_fields
from foldmark.compare.agreement import Form, form_of
from foldmark.compare.diff import Diff
from foldmark.compare.difference import FieldDifference
from foldmark.compare.mixing import FLOAT
from foldmark.compare.prices import Prices
from foldmark.compare.tensor_diff import TensorDiff
from foldmark.formats.stored import StoredTensor
from foldmark.report.difference_activations import activation_table, activation_verdict
from foldmark.report.difference_prices import NOTABLE, price_table, worth
from foldmark.report.difference_words import doing, listed, row
from foldmark.report.words import counted, fitted, percent, printable, wrapped

__all__ = ["render", "verdict"]

_SAID = 3
_LARGEST = 3
_LISTED = 3


def render(diff: Diff, prices: Prices | None, *, everything: bool) -> str:
    """Return the verdict, the decisions, each side's rule, the weights, what is left."""
    parts = [
        verdict(diff, prices) + _first_code(diff),
        _decisions(diff, everything) if prices is None else price_table(prices, everything),
        _rules(diff, everything),
        _weights(diff, everything),
        _activation_scales(diff, prices, everything),
        _left_over(diff, prices, everything),
    ]
    return "\n\n".join(part for part in parts if part)


def verdict(diff: Diff, prices: Prices | None) -> str:
    """Say what each side does and what the difference costs."""
    changed = sum(_differs(tensor) for tensor in diff.tensors)
    weights = counted(len(diff.tensors), "weight")
    said, alike = _said(diff, prices)
    if changed:
        sentence = f"A and B differ in {changed} of the {weights} that both have"
    else:
        sentence = f"A and B hold the same numbers in all of the {weights} that both have"
    if said:
        but = "" if changed else " But"
        only = f" In {alike} of them" if alike < max(changed, 1) else but
        sentence += f".{only} {_both(said)}."
    elif not changed:
        sentence += "."
    elif diff.original is None:
        sentence += "; name the float model (--float) to have the rules found."
    elif len(diff.without_original) == len(diff.tensors):
        sentence += "; the float model holds none of them as floats, so that no rule can be found."
    else:
        sentence += _named(diff) or ", in no decision that these weights can show."
    activations = "" if _is_run(diff, prices) else activation_verdict(diff.activations)
    if activations:
        sentence += f" {activations}"
    if prices is not None:
        sentence += " " + worth(prices)
    return wrapped(printable(sentence))


def _can_run(diff: Diff) -> bool:
    return diff.left.format_name == diff.right.format_name == "ONNX"


def _is_run(diff: Diff, prices: Prices | None) -> bool:
    """Say whether both files were run as they are: then activations have their prices."""
    return prices is not None and _can_run(diff)


def _activation_scales(diff: Diff, prices: Prices | None, everything: bool) -> str:
    """Return what the files say of activations that have no prices."""
    if _is_run(diff, prices):
        return ""
    return activation_table(diff.activations, can_run=_can_run(diff), everything=everything)


def _named(diff: Diff) -> str:
    """Name the rules of the form that most weights have, where no rule fits both sides."""
    largest = [max(side.values(), key=lambda a: a.agree, default=None) for side in diff.agreed]
    if None in largest:
        return ""
    one, other = (agreement.names for agreement in largest if agreement is not None)
    if set(one) & set(other):
        return ""
    return f". A fits {one[0]}; B fits {other[0]} (`foldmark rules` shows where two part)."


def _both(said: Sequence[tuple[str, str, str]]) -> str:
    """Say what A does and what B does; of weights that one leaves in float, that one alone."""
    kept = (
        [doing(name, words) for name, words, _ in said if (name, words) != (FLOAT, "quantized")],
        [doing(name, words) for name, _, words in said if (name, words) != (FLOAT, "quantized")],
    )
    sides = [
        f"{name} {listed(phrases)}" for name, phrases in zip("AB", kept, strict=True) if phrases
    ]
    return "; ".join(sides)


def _differs(tensor: TensorDiff) -> bool:
    """Say whether numbers differ; NaN is no number, and differs."""
    return tensor.distance != 0


def _said(diff: Diff, prices: Prices | None) -> tuple[list[tuple[str, str, str]], int]:
    """Return the decisions that the verdict names, and how many weights they hold for.

    Each is (name, A's words, B's words). Without prices they are those of the most weights.
    """
    if prices is not None and prices.prices:
        first = prices.prices[0]
        notable = [p for p in prices.prices if p is first or abs(p.share) >= NOTABLE]
        counts = [p.weights for p in notable if p.weights]
        units = [(p.unit.name, p.unit.left, p.unit.right) for p in notable[:_SAID]]
        return units, min(counts, default=len(diff.tensors))
    summed = _summed(diff)
    if not summed:
        return [], 0
    most = summed[0].weights
    fields = [each.field for each in summed if each.weights == most]
    return [(f.field, f.left, f.right) for f in fields[:_SAID]], most


def _first_code(diff: Diff) -> str:
    """Return the first code that the two part on, with its numbers."""
    for tensor in diff.tensors:
        codes = tensor.codes
        if codes is None or codes.index is None:
            continue
        name = fitted(printable(diff.called(tensor)), 45)
        index = ", ".join(str(i) for i in codes.index)
        sentence = f"First code apart: {name}[{index}], "
        if codes.weight is None or codes.left_exact is None or codes.right_exact is None:
            sentence += f"{codes.left} and {codes.right}"
        elif codes.left_exact == codes.right_exact:
            sentence += f"{codes.left_exact:.6g} steps -> {codes.left} in A, {codes.right} in B"
        else:
            sentence += (
                f"{codes.left_exact:.5g} steps -> {codes.left} in A, "
                f"{codes.right_exact:.5g} -> {codes.right} in B"
            )
        share = percent(codes.count / codes.total, 0) if codes.count * 100 >= codes.total else ""
        of = "its" if tensor.sampled is None else f"{codes.total:,} sampled"
        many = f"{share or format(codes.count, ',')} of {of} codes differ"
        return "\n" + wrapped(f"{sentence} ({many}).")
    return ""


@dataclass(frozen=True)
class _Summed:
    """A decision, and how many weights were made with it.

    Attributes:
        field: the decision.
        weights: how many; those of a form count with its searched ones where these agree.
    """

    field: FieldDifference
    weights: int


def _summed(diff: Diff) -> list[_Summed]:
    """Join equal differences, those of the most weights first."""
    forms = Counter(tensor.forms for tensor in diff.tensors)
    searched = Counter(tensor.forms for tensor in diff.tensors if _is_searched(tensor))
    seen: dict[tuple[str, str, str], Counter[tuple[Form, ...]]] = {}
    first: dict[tuple[str, str, str], FieldDifference] = {}
    for tensor in diff.tensors:
        for field in tensor.fields:
            key = (field.field, field.left, field.right)
            first.setdefault(key, field)
            seen.setdefault(key, Counter())[tensor.forms] += 1
    found = [
        _Summed(
            first[key],
            sum(
                forms[form] if count == searched[form] else count for form, count in counts.items()
            ),
        )
        for key, counts in seen.items()
    ]
    return sorted(found, key=lambda each: -each.weights)


def _is_searched(tensor: TensorDiff) -> bool:
    return tensor.left is not None and tensor.right is not None


def _decisions(diff: Diff, everything: bool) -> str:
    """Return the decisions that differ, and in how many weights."""
    summed = _summed(diff)
    if not summed:
        return ""
    lines = [f"{'what differs':<18} {'A':<25} {'B':<25} {'weights':>8}"]
    total = len(diff.tensors)
    for each in summed:
        field = each.field
        cells = (field.field, field.left, field.right)
        lines += row(cells, (18, 25, 25), f" {f'{each.weights} of {total}':>8}")
        if field.alternatives:
            others = "; ".join(field.alternatives)
            lines.append(
                wrapped(f"or, which these weights can't tell: {others}", first="  ", later="    ")
            )
        if field.evidence and (everything or len(summed) < _SAID):
            lines.append(wrapped(printable(field.evidence), first="  ", later="    "))
    searched = sum(map(_is_searched, diff.tensors))
    if searched and searched < sum(t.left_error is not None for t in diff.tensors):
        lines.append(
            wrapped(f"({counted(searched, 'weight')} searched; the others count with their form)")
        )
    return "\n".join(lines)


def _rules(diff: Diff, everything: bool) -> str:
    """Say how each side was made: the form that most weights have, or every form."""
    if diff.original is None:
        return _traces(diff)
    lines = []
    for name, side in (("A", 0), ("B", 1)):
        counts = Counter(form_of(tensor) for tensor in _quantized(diff, side))
        found: dict[Form, str] = {}
        # the largest weight of a form speaks for it: a bias has another shape, and fewer codes
        for tensor in sorted(diff.tensors, key=lambda t: -t.match.left.elements):
            fit = (tensor.left, tensor.right)[side]
            stored = tensor.match.right[0] if side else tensor.match.left
            form = form_of(stored)
            if fit is None or form in found:
                continue
            words, undecided = describe_rule(fit, diff.agreed[side].get(form)), open_fields(fit)
            if everything and undecided:
                words += ". Open: " + "; ".join(undecided)
            found[form] = words
        chosen = sorted(found, key=lambda form: -counts[form])
        for form in chosen if everything else chosen[:1]:
            lines.append(wrapped(printable(f"{name}: {found[form]}."), later="   "))
    return "\n".join(lines)


def _traces(diff: Diff) -> str:
    """Without the float model: what codes and scales show of themselves."""
    lines = [
        wrapped(printable(f"{name}: {words}."), later="   ")
        for name, said in zip("AB", diff.traces, strict=True)
        for words in said
    ]
    return (
        "\n".join(["what codes and scales show, the float weights unseen", *lines]) if lines else ""
    )


def _quantized(diff: Diff, side: int) -> list[StoredTensor]:
    tensors = [t.match.left if side == 0 else t.match.right[0] for t in diff.tensors]
    return [tensor for tensor in tensors if tensor.layout.is_quantized]


def _weights(diff: Diff, everything: bool) -> str:
    changed = sorted((t for t in diff.tensors if _differs(t)), key=_weight_error, reverse=True)
    if not changed:
        return ""
    known = diff.original is not None
    shown = changed if everything else changed[:_LARGEST]
    title = "weights whose error moves most" if known else "weights that differ most"
    if len(changed) > len(shown):
        title += " (--all: all)"
    head = f"{title:<44}{'A to B':>12}"
    lines = [head + (f"{'A error':>12}{'B error':>12}" if known else "")]
    for tensor in shown:
        line = f"{fitted(printable(diff.called(tensor)), 43):<44}{tensor.distance:>12.3%}"
        if tensor.left_error is not None and tensor.right_error is not None:
            line += f"{tensor.left_error:>12.3%}{tensor.right_error:>12.3%}"
        lines.append(line)
    return "\n".join(lines)


def _weight_error(tensor: TensorDiff) -> float:
    if tensor.left_error is None or tensor.right_error is None:
        return tensor.distance
    return abs(tensor.left_error - tensor.right_error)


def _left_over(diff: Diff, prices: Prices | None, everything: bool) -> str:
    lines = []
    for words, names in (
        ("Only in A", [t.name for t in diff.left_only]),
        ("Only in B", [t.name for t in diff.right_only]),
        ("Not in the float model as floats", list(diff.without_original)),
    ):
        if names:
            shown = names if everything else names[:_LISTED]
            more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
            lines.append(wrapped(printable(f"{words}: {', '.join(shown)}{more}."), later="  "))
    sampled = [t.sampled for t in diff.tensors if t.sampled is not None]
    if sampled:
        lines.append(
            wrapped(
                f"Of {len(sampled)} of the {counted(len(diff.tensors), 'weight')} samples were "
                f"compared, {min(sampled):,} numbers of each at least; a rule is searched on the "
                "first rows of those that differ most."
            )
        )
    notes: Iterable[str] = () if prices is None else prices.notes
    lines += [wrapped(printable(note)) for note in notes]
    return "\n".join(lines)
