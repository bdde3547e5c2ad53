"""What a person should know about a calibration before trusting it."""

import textwrap

import numpy as np

from foldmark.calibrate.calibration import Calibration
from foldmark.calibrate.observers import Method, Observer, Symmetry
from foldmark.calibrate.statistics import Statistics

__all__ = ["outlier_ratio", "remarks"]

_OUTLIER = 4.0  # the largest value is so many times what 99.9 % of the values stay under
_NAMED = 3


def outlier_ratio(statistics: Statistics) -> float:
    """Return max|x| / the 99.9th percentile of |x|; 1 without a histogram."""
    histogram = statistics.histogram
    if not len(histogram.counts):
        return 1.0
    sizes = np.abs(histogram.centers)
    order = np.argsort(sizes)
    share = np.cumsum(histogram.counts[order]) / histogram.total
    usual = sizes[order][int(np.argmax(share >= 0.999))]
    largest = max(abs(statistics.minimum), abs(statistics.maximum))
    return float(largest / max(usual, histogram.width))


def remarks(
    calibration: Calibration, observer: Observer, held_out: Calibration | None = None
) -> list[str]:
    """Return sentences, each about one thing worth knowing; lines of at most 80 characters."""
    found = [
        _outliers(calibration),
        _one_sided(calibration, observer),
        _loud_channels(calibration, observer),
        _constant(calibration),
        _unseen(calibration),
        _no_change(calibration, observer),
        _enough(calibration),
        _left(calibration, observer, held_out) if held_out is not None else "",
    ]
    return [textwrap.fill(sentence, 80) for sentence in found if sentence]


def _outliers(calibration: Calibration) -> str:
    ratios = {
        name: outlier_ratio(each) for name, each in calibration.tensors.items() if each.batches
    }
    worst = sorted((n for n in ratios if ratios[n] > _OUTLIER), key=lambda n: -ratios[n])
    if not worst:
        return ""
    named = ", ".join(f"{name} ({ratios[name]:.0f} times)" for name in worst[:_NAMED])
    return (
        f"Outliers: in {len(worst)} tensors the largest value is over {_OUTLIER:.0f} times what "
        f"99.9 % of the values stay under: {named}. Most codes go unused there; try "
        "--observer mse or percentile."
    )


def _one_sided(calibration: Calibration, observer: Observer) -> str:
    if observer.symmetry is not Symmetry.SYMMETRIC:
        return ""
    sided = [
        name
        for name, each in calibration.tensors.items()
        if each.batches
        and min(abs(each.minimum), abs(each.maximum)) < 0.1 * max(abs(each.minimum), each.maximum)
    ]
    if not sided:
        return ""
    named = ", ".join(sided[:_NAMED])
    return (
        f"One-sided: {len(sided)} tensors have values almost only of one sign ({named}); "
        "--symmetric spends nearly half of their codes on the other."
    )


def _loud_channels(calibration: Calibration, observer: Observer) -> str:
    """Name the tensors where few channels set a range that the others do not use."""
    loud = []
    for name, ranges in calibration.channel_ranges(observer).items():
        spans = np.array([each.high - each.low for each in ranges])
        usual = float(np.median(spans))
        if usual > 0 and spans.max() > _OUTLIER * usual:
            loud.append((float(spans.max()) / usual, name, int(spans.argmax())))
    if not loud:
        return ""
    loud.sort(reverse=True)
    named = ", ".join(
        f"{name} (channel {at}, {ratio:.0f} times)" for ratio, name, at in loud[:_NAMED]
    )
    return (
        f"Loud channels: in {len(loud)} tensors one channel's range is over {_OUTLIER:.0f} times "
        f"the median channel's: {named}. One scale for all leaves the others few codes; "
        "smoothquant evens them out."
    )


def _constant(calibration: Calibration) -> str:
    flat = [n for n, e in calibration.tensors.items() if e.batches and e.minimum == e.maximum == 0]
    return f"Always zero: {', '.join(flat[:_NAMED])} ({len(flat)} in all)." if flat else ""


def _unseen(calibration: Calibration) -> str:
    never = calibration.unseen
    if not never:
        return ""
    named = ", ".join(never[:_NAMED])
    return f"Never seen: {len(never)} activations ({named}): no sample took the branch they are in."


def _no_change(calibration: Calibration, observer: Observer) -> str:
    if observer.method is Method.MIN_MAX:
        return ""
    same, all_of_them = calibration.unchanged(observer)
    if not same:
        return ""
    return f"{observer.method.value} gave min-max on {same} of {all_of_them} tensors."


def _enough(calibration: Calibration) -> str:
    last, batches = calibration.settled_after, calibration.batches
    if batches < 2:
        return "One batch only: nothing tells whether it was enough."
    if last == batches:
        return f"The last of {batches} batches still widened a range by over 1 %: more would help."
    return f"No range grew by over 1 % after batch {last} of {batches}: that was enough."


def _left(calibration: Calibration, observer: Observer, held_out: Calibration) -> str:
    shares = list(calibration.outside(held_out, observer))
    out = [(name, share) for name, share in shares if share > 0]
    if not out:
        return f"Held out: no value of {held_out.samples} samples leaves its range."
    named = ", ".join(f"{name} ({100 * share:.2g} %)" for name, share in out[:_NAMED])
    return f"Held out: values leave the range of {len(out)} of {len(shares)} tensors: {named}."
