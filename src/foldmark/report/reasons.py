"""Why a site costs what it costs, in plain English with numbers."""

from typing import assert_never

from foldmark.graphs.sites import SiteKind
from foldmark.ledger.axes import axis_names
from foldmark.ledger.causes import Cause
from foldmark.ledger.entries import Entry
from foldmark.ledger.facts import ScaleSetter
from foldmark.report.words import number, percent

__all__ = ["main_cause", "reason"]

# A setter is worth a sentence when the rest would need a step this many times smaller.
_STANDS_OUT = 1.5
_MUCH_CLIPPED = 1e-4
_LONG_RANGE = 2.0


def main_cause(entry: Entry) -> tuple[Cause, float]:
    """Return the cause with the largest part of the entry, and that part of it (0..1)."""
    if not entry.causes:
        return Cause.ROUNDING, 1.0
    sign = 1.0 if entry.amount >= 0 else -1.0
    cause, amount = max(entry.causes.items(), key=lambda item: sign * item[1])
    return cause, amount / entry.amount if entry.amount else 0.0


def reason(entry: Entry) -> str:
    """Return the sentences that say why."""
    cause, part = main_cause(entry)
    sentences = [
        _cause_sentence(entry, cause, part),
        _bias_sentence(entry),
        _setter_sentence(entry),
        _range_sentence(entry),
        _rows_sentence(entry),
        _origin_sentence(entry),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _cause_sentence(entry: Entry, cause: Cause, part: float) -> str:
    facts = entry.facts
    share = "" if part > 0.995 else f" ({percent(min(part, 9.99), 0)} of it)"
    match cause:
        case Cause.CLIPPING:
            low, high = facts.covered
            return (
                f"Clipping{share}: {percent(facts.clipped, 2)} of the values lie outside "
                f"[{number(low)}, {number(high)}], the range of the codes; they reach "
                f"from {number(facts.seen[0])} to {number(facts.seen[1])}."
            )
        case Cause.ZERO_POINT:
            said = f"Zero point{share}: whole groups of codes are shifted by one or more steps"
        case Cause.SCALE:
            said = f"Scale{share}: whole groups of values come back too large or too small"
        case Cause.CODES:
            said = f"Codes{share}: many stored codes are not the nearest to the float value"
        case Cause.ROUNDING:
            said = f"Rounding{share}"
        case _:
            assert_never(cause)
    return f"{said}: the error is {percent(facts.relative_error)} of the tensor's norm."


def _bias_sentence(entry: Entry) -> str:
    if entry.bias_ratio is None:
        return ""
    return (
        f"Its scale is {number(entry.bias_ratio)} times input scale * weight scale, the step of "
        "the product that it is added to: integer kernels that add it as it is read it wrong."
    )


def _setter_sentence(entry: Entry) -> str:
    setter = entry.facts.setter
    if setter is None or setter.scale is None or setter.scale_without is None:
        return ""
    if setter.scale_without <= 0 or setter.scale / setter.scale_without < _STANDS_OUT:
        few = setter.codes and setter.codes_of_rest and setter.codes_of_rest * 8 < setter.codes
        share = f"99 % of the values share {setter.codes_of_rest} of {setter.codes} codes."
        return share if few else ""
    times = setter.scale / setter.scale_without
    where, rest = _where(entry, setter), "the median channel reaches"
    shared, typical = "99 % of the values share", entry.facts.typical
    if setter.alike is not None and setter.rest_below is not None:
        rest, typical = "the rest stays within", setter.rest_below
        shared = "all the others share"
        if setter.alike > 0.001:
            rest = f"all but {percent(setter.alike)} of the values stay within"
    elif setter.channels > 1:
        where += f", one of {setter.channels} large channels,"
    text = (
        f"{where} holds {number(setter.value)}, where {rest} "
        f"{number(typical)}: it sets the step at {number(setter.scale)}, "
        f"{number(times, 3)} times the {number(setter.scale_without)} that the rest would need"
    )
    if setter.codes_of_rest is not None and setter.codes is not None:
        text += f", so {shared} {setter.codes_of_rest} of {setter.codes} codes"
    return text + "."


def _where(entry: Entry, setter: ScaleSetter) -> str:
    names = axis_names(entry.site, len(setter.index))
    name = names[setter.axis] if setter.axis is not None else "element"
    place = f"{name} {setter.channel}" if setter.channel is not None else "one element"
    index = ", ".join(map(str, setter.index))
    if entry.site.kind in (SiteKind.WEIGHT, SiteKind.BIAS):
        return f"{place[0].upper()}{place[1:]} (element [{index}])"
    return f"{place[0].upper()}{place[1:]} (element [{index}], sample {setter.index[0]})"


def _range_sentence(entry: Entry) -> str:
    low, high = entry.facts.covered
    seen_low, seen_high = entry.facts.seen
    reach = max(abs(seen_low), abs(seen_high))
    if entry.site.kind in (SiteKind.WEIGHT, SiteKind.BIAS) or reach <= 0:
        return ""
    if max(abs(low), abs(high)) > _LONG_RANGE * reach:
        return (
            f"Calibration chose [{number(low)}, {number(high)}]; these inputs only reach from "
            f"{number(seen_low)} to {number(seen_high)}."
        )
    clipping = entry.causes.get(Cause.CLIPPING, 0.0)
    if entry.facts.clipped > _MUCH_CLIPPED and main_cause(entry)[0] is not Cause.CLIPPING:
        part = percent(clipping / entry.amount, 0) if entry.amount else "part"
        return f"{percent(entry.facts.clipped, 2)} of the values are clipped, {part} of it."
    return ""


def _rows_sentence(entry: Entry) -> str:
    facts = entry.facts
    if facts.relative_error_smallest < 3 * facts.relative_error:
        return ""
    return (
        f"The smallest channels are {percent(facts.relative_error_smallest)} off, where the mean "
        f"of {percent(facts.relative_error)} hides them."
    )


def _origin_sentence(entry: Entry) -> str:
    origin = entry.origin
    if origin is None:
        return ""
    if origin.is_carrier:
        return (
            f"Most of the error in this tensor arrives from upstream ({percent(origin.arrived)} "
            f"of its norm, against {percent(origin.born)} born here)."
        )
    return (
        f"The error is born here ({percent(origin.born)} of the norm, "
        f"{percent(origin.arrived)} arrives from upstream)."
    )
