"""The report of `explain` as text of 80 columns."""

from collections.abc import Iterable, Sequence

from foldmark.graphs.sites import NO_FLOAT_MODEL
from foldmark.ledger.entries import Entry
from foldmark.ledger.findings import Findings
from foldmark.ledger.softmax import SoftmaxGain
from foldmark.report.reasons import main_cause, reason
from foldmark.report.words import (
    counted,
    fitted,
    number,
    operator_title,
    percent,
    site_titles,
    wrapped,
)

__all__ = ["render", "verdict"]

# A cure that is predicted to save less of the change is counted, not listed.
_WORTH = 0.001
_WIDTH = 80
_ROWS = 12
_REASONS = 3
_MOST = 0.8
# A line that holds more than this of the change is what the verdict is about.
_MAIN = 0.5
# An account that leaves more than this of the change open explains little.
_OPEN = 0.1
# The float model's distance from itself, as rounding leaves it, over the quantized model's.
_NOTHING = 1e-9


def verdict(report: Findings) -> str:
    """Return the finding in one sentence."""
    metric = report.metric
    moved = f"{metric.title} moved from {number(metric.exact)} to {number(metric.quantized)}"
    if abs(metric.exact) <= _NOTHING * abs(metric.quantized):
        moved = f"{metric.title} rose to {number(metric.quantized)}"
    if metric.change == 0:
        moved = f"{metric.title} did not move from {number(metric.exact)}"
    labels = report.labels
    if labels is not None:
        moved = (
            f"accuracy went from {percent(labels.accuracy_exact)} to "
            f"{percent(labels.accuracy_quantized)}, {moved}"
        )
    moved = moved[0].upper() + moved[1:]
    if metric.change == 0:
        return f"{moved}: nothing to explain."
    if not metric.is_worse:
        return f"{moved}: no loss; the sites' effects cancel."
    is_open = abs(report.closure.relative_error) > _OPEN
    if is_open and report.entries and report.cost.nodes:
        return (
            f"{moved}; the account does not close ({report.closure.relative_error:+.0e}): its "
            "entries are no ground for a cure."
        )
    outside = _outside(report)
    if outside:
        return f"{moved}; {outside}."
    if not report.entries:
        return f"{moved}; no site is there to carry it."
    first, titles = report.entries[0], _titles(report)
    lead = f"{titles[first.site.name]} carries {percent(first.share, 0)} of it"
    few, carried = _few(report.entries)
    if few > 1:
        lead = (
            f"{few} of {len(report.entries)} sites carry {percent(carried, 0)} of it, first "
            f"{titles[first.site.name]} with {percent(first.share, 0)}"
        )
    cause, part = main_cause(first)
    return f"{moved}; {lead} ({cause.value.replace('_', ' ')} {percent(min(part, 9.99), 0)})."


def _outside(report: Findings) -> str:
    """Return what caused most of the change where no site did, else nothing."""
    closure = report.closure
    if abs(closure.kernel) > _MAIN * abs(closure.total):
        said = "the runtime's kernels compute something else than the model says"
        if report.kernels:
            said = f"as the runtime computes it, {report.kernels[0]}"
        return f"{percent(closure.kernel / closure.total, 0)} of it is no site's: {said}"
    if abs(closure.graph) > _MAIN * abs(closure.total):
        return (
            f"{percent(closure.graph / closure.total, 0)} of it is no site's: the network was "
            "changed besides quantization"
        )
    return ""


def render(report: Findings) -> str:
    """Return the whole report."""
    parts = [
        wrapped(verdict(report), _WIDTH),
        *_conditions(report),
        _account(report),
        _kernels(report),
        _table(report),
        _subtotals(report),
        _reasons(report),
        _fixes(report),
        _softmaxes(report.softmaxes),
        _labels(report),
        _unmatched(report),
        _notes(report),
    ]
    text = "\n\n".join(part for part in parts if part)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _few(entries: Sequence[Entry]) -> tuple[int, float]:
    """Return how many of the first entries carry most of the change, and how much of it."""
    carried = 0.0
    for count, entry in enumerate(entries, start=1):
        carried += entry.share
        if carried >= _MOST or count == 5:
            return count, carried
    return len(entries), carried


def _conditions(report: Findings) -> Iterable[str]:
    text = f"On {counted(report.cost.samples, 'sample')} from {report.data}. {report.metric.reason}"
    if report.is_random:
        text += " RANDOM DATA: the ranking may be another on real inputs."
    yield wrapped(text, _WIDTH)


def _account(report: Findings) -> str:
    closure, total = report.closure, report.closure.total

    def line(name: str, amount: float) -> str:
        share = percent(amount / total, 2) if total else "-"
        return f"  {name:<46}{number(amount):>14}{share:>14}"

    nodes = report.cost.nodes
    sites = f"{counted(report.cost.sites, 'site')}, sum of the entries"
    how = f"quadrature, {counted(nodes, 'node')}" if nodes else "interaction, not attributed"
    rows = [
        f"{'Account':<38}{report.metric.title:>24}{'share':>14}",
        line(sites, closure.sites),
        line("graph: changed besides quantization", closure.graph),
        line("kernel: real integer kernels - simulated", closure.kernel),
        line(how, closure.quadrature),
        f"  {'measured change':<46}{number(total):>14}{'100.00 %':>14}",
        f"  closes to {closure.relative_error:+.1e}; replay differs from the simulated model by "
        f"{report.replay_error:.0e}",
    ]
    if nodes and total:
        share = closure.unsigned / abs(total)
        rows.append(
            f"  piece by piece, signs left aside, the nodes leave {share:.1e} of the change open"
        )
    return "\n".join(rows)


def _kernels(report: Findings) -> str:
    if not report.kernels:
        return ""
    told = "; ".join(map(str, report.kernels))
    return wrapped(f"Where the runtime parts from the model: {told}.", _WIDTH)


def _table(report: Findings) -> str:
    if not report.entries:
        return ""
    rows = [f"{'Site':<40}{'amount':>10}{'share':>9}  {'90 % interval':<14}{'cause':<5}"]
    titles = _titles(report)
    for entry in report.entries[:_ROWS]:
        cause, _ = main_cause(entry)
        rows.append(
            f"{fitted(titles[entry.site.name], 39):<40}{number(entry.amount, 3):>10}"
            f"{percent(entry.share):>9}  {_interval(entry, report.metric.change):<12}"
            f"{_SHORT[cause.value]:>7}"
        )
    rest = report.entries[_ROWS:]
    if rest:
        amount = sum(entry.amount for entry in rest)
        share = sum(entry.share for entry in rest)
        name = f"{len(rest)} more"
        rows.append(f"{name:<40}{number(amount, 3):>10}{percent(share):>9}")
    rows.extend(_doubt(report))
    return "\n".join(rows)


_SHORT = {
    "rounding": "round",
    "clipping": "clip",
    "zero_point": "zero",
    "scale": "scale",
    "codes": "codes",
}


def _interval(entry: Entry, total: float) -> str:
    if entry.interval is None or total == 0:
        return ""
    low, high = sorted(end / total * 100 for end in entry.interval)
    if max(-low, high) < 1e4:
        return f"{low:.1f}..{high:.1f}"
    return f"{low:.0e}..{high:.0e}".replace("e+", "e")


def _doubt(report: Findings) -> Iterable[str]:
    if report.first_holds is None:
        yield "Too few batches for intervals: give more samples or a smaller --batch-size."
    elif report.first_holds < 0.9:
        yield wrapped(
            f"These samples do not settle the ranking: the first site stays first in only "
            f"{percent(report.first_holds, 0)} of the draws from them.",
            _WIDTH,
        )


def _subtotals(report: Findings) -> str:
    rows = []
    for title, groups in (("Layers", report.layers[:6]), ("Kinds", report.kinds)):
        named = [f"{fitted(each.name or '(no name)', 34)} {percent(each.share)}" for each in groups]
        if len(named) > 1:
            rows.append(wrapped(f"{title}: " + ", ".join(named), _WIDTH, later="  "))
    return "\n".join(rows)


def _reasons(report: Findings) -> str:
    blocks, titles = [], _titles(report)
    for place, entry in enumerate(report.entries[:_REASONS], start=1):
        if entry.amount * report.metric.harm <= 0:
            break
        head = f"{place}. {titles[entry.site.name]}: {percent(entry.share)}"
        body = wrapped(reason(entry), _WIDTH, first="   ", later="   ")
        where = _groups(entry)
        blocks.append("\n".join(part for part in (head, body, where) if part))
    return "Why\n" + "\n".join(blocks) if blocks else ""


def _groups(entry: Entry) -> str:
    by_axis: dict[str, list[str]] = {}
    for group in entry.groups:
        if entry.amount and group.amount / entry.amount > 0.02:
            part = percent(group.amount / entry.amount, 0)
            by_axis.setdefault(group.axis, []).append(f"{group.index} ({part})")
    told = [f"{axis} {', '.join(parts[:4])}" for axis, parts in by_axis.items()]
    if not told:
        return ""
    return wrapped(
        "Largest parts of it: " + "; ".join(told) + ".",
        _WIDTH,
        first="   ",
        later="   ",
    )


def _titles(report: Findings) -> dict[str, str]:
    return site_titles(entry.site for entry in report.entries)


def _fixes(report: Findings) -> str:
    if not report.fixes:
        return ""
    titles = _titles(report)
    rows = [f"{'Cure':<58}{'predicted':>11}{'measured':>11}"]
    worth = [fix for fix in report.fixes if fix.measured is not None or fix.share >= _WORTH]
    for fix in worth:
        where = titles.get(fix.sites[0], fix.sites[0])
        if len(fix.sites) > 1:
            where += f" and {len(fix.sites) - 1} more"
        room = 57 - len(fix.change) - 2
        measured = "" if fix.measured is None else number(fix.measured, 3)
        rows.append(
            f"{f'{fix.change}: {fitted(where, max(room, 16))}':<58}"
            f"{number(fix.predicted, 3):>11}{measured:>11}"
        )
    first = worth[0] if worth else report.fixes[0]
    told = f"What each saves of the {number(first.moved)} by which {report.metric.title} moved"
    if first.samples < report.cost.samples:
        told += f" on the first {counted(first.samples, 'sample')}"
    told += "."
    if len(worth) < len(report.fixes):
        few = len(report.fixes) - len(worth)
        told += f" {few} more would save less than {percent(_WORTH)} of it."
    rows.append(wrapped(told, _WIDTH))
    apart = [fix for fix in report.fixes if fix.parts]
    if apart:
        rows.append(
            wrapped(
                f"Prediction and measurement part by more than 20 % for "
                f"{counted(len(apart), 'cure')}: trust the measurement.",
                _WIDTH,
            )
        )
    return "\n".join(rows)


def _softmaxes(softmaxes: Sequence[SoftmaxGain]) -> str:
    if not softmaxes:
        return ""
    rows = [f"{'Softmax':<48}{'scores':>10}{'probs':>10}{'gain':>10}"]
    for each in sorted(softmaxes, key=lambda s: -max(s.probabilities, default=0.0))[:4]:
        worst = max(range(len(each.probabilities)), key=lambda head: each.probabilities[head])
        name = operator_title("Softmax", each.layer, each.name)
        if len(each.probabilities) > 1:
            name += f" head {worst}"
        rows.append(
            f"{fitted(name, 47):<48}{percent(each.scores[worst]):>10}"
            f"{percent(each.probabilities[worst]):>10}{number(each.gains[worst], 3):>10}"
        )
    rows.append("Relative errors of the worst head; a gain above 1 amplifies, below 1 buries.")
    return "\n".join(rows)


def _labels(report: Findings) -> str:
    labels = report.labels
    if labels is None:
        return ""
    titles = _titles(report)
    rows = [
        f"Accuracy {percent(labels.accuracy_exact)} -> {percent(labels.accuracy_quantized)} on "
        f"{counted(labels.samples, 'label')}; {counted(len(labels.flips), 'answer')} changed"
    ]
    for flip in labels.flips[:5]:
        taken = ", ".join(
            f"{fitted(titles.get(loss.site, loss.site), 30)} {number(loss.amount, 2)}"
            for loss in flip.losses[:2]
        )
        place = f", row {flip.row}" if labels.rows > 1 else ""
        text = (
            f"sample {flip.sample}{place} (label {flip.label}): {flip.exact} -> {flip.quantized}, "
            f"margin {number(flip.margin_exact, 3)} -> {number(flip.margin_quantized, 3)}"
        )
        if taken:
            text += f"; taken by {taken}"
        rows.append(wrapped(text, _WIDTH, first="  ", later="    "))
    return "\n".join(rows)


def _unmatched(report: Findings) -> str:
    told = [each for each in report.unmatched if each.reason != NO_FLOAT_MODEL]
    if not told:
        return ""
    rows = ["Constants that no entry accounts for; what they move is in graph:"]
    for each in told[:8]:
        where = f" of {operator_title(each.operator, each.layer)}" if each.operator else ""
        text = f"{fitted(each.name, 44)}{where} {list(each.shape)}: {each.reason}"
        rows.append(wrapped(text, _WIDTH, first="  ", later="    "))
    if len(told) > 8:
        rows.append(f"  and {len(told) - 8} more")
    return "\n".join(rows)


def _notes(report: Findings) -> str:
    cost = report.cost
    told = [
        *report.notes,
        f"{number(cost.seconds, 3)} s, the time of {number(cost.forward_equivalents, 3)} forward "
        f"passes.",
    ]
    return "\n".join(wrapped(note, _WIDTH) for note in told)
