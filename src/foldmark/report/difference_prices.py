"""What the decisions of a comparison cost at the output, as text."""

from collections.abc import Sequence

from foldmark.compare.prices import Price, Prices
from foldmark.report.difference_words import listed, row
from foldmark.report.words import counted, fitted, number, percent, printable, wrapped

__all__ = ["NOTABLE", "price_table", "worth"]

NOTABLE = 0.05
"""The verdict names decisions of at least this part."""

_SAID = 3
_ACTIVATIONS = 2
# A decision that moves the output by less than this part of the difference is worth nothing.
_NOTHING = 0.005


def price_table(prices: Prices, everything: bool) -> str:
    """Return the decisions with their price at the output, the sum beside what was measured."""
    widths, difference = (17, 17, 18), prices.difference * prices.metric.harm
    head = f"{'what differs':<17} {'A':<17} {'B':<18}{'predicted':>9}{'measured':>9}{'share':>6}"
    lines = [head]
    for price in prices.prices:
        count = f" ({price.weights})" if price.weights else ""
        names = (price.unit.name + count, price.unit.left, price.unit.right)
        lines += row(names, widths, _amounts(price.predicted, price.measured, difference))
    rest = [
        ("together, not alone", prices.together),
        ("real kernels, not simulated", prices.kernel),
    ]
    for words, amount in rest:
        if difference and abs(amount) >= _NOTHING / 5 * abs(difference):
            lines.append(f"{words:<54}{_amounts(None, amount, difference)}")
    total = sum(price.measured for price in prices.prices) + prices.together + prices.kernel
    known = [price.predicted for price in prices.prices]
    predicted = sum(p for p in known if p is not None) if None not in known else None
    lines.append(
        f"{'sum; the difference measured is ' + number(difference, 4):<54}"
        f"{_amounts(predicted, total, difference)}"
    )
    return "\n".join([*lines, *_activations(prices, everything)])


def _amounts(predicted: float | None, measured: float, difference: float) -> str:
    guess = "-" if predicted is None else number(predicted, 2)
    share = percent(measured / difference, 0) if difference else "-"
    return f"{guess:>9}{number(measured, 2):>9}{share:>6}"


def _activations(prices: Prices, everything: bool) -> list[str]:
    """Return the activations that are quantized differently, the most costly first."""
    difference = prices.difference * prices.metric.harm
    if not prices.activations or not difference:
        return []
    if not everything:
        most = [
            f"{_value_name(each.name)} {percent(each.worth / difference, 0)}"
            for each in prices.activations[:_ACTIVATIONS]
        ]
        return [wrapped("of the activations mostly " + ", ".join(most), later="  ")]
    lines = ["", f"{'activations, alone: A, B':<54}{'predicted':>9}{'measured':>9}{'share':>6}"]
    for each in prices.activations:
        guess = each.amount if each.predicted is None else each.predicted
        run = "-" if each.measured is None else number(each.measured, 2)
        amounts = f"{number(guess, 2):>9}{run:>9}{percent(each.worth / difference, 0):>6}"
        lines.append(f"{fitted(_value_name(each.name), 53):<54}{amounts}")
        sides = printable(f"{each.left}; {each.right}")
        lines.append(wrapped(sides, first="  ", later="    "))
    return lines


def _value_name(name: str) -> str:
    return fitted(printable(name).removesuffix("_output_0").lstrip("/"), 62)


def worth(prices: Prices) -> str:
    """Say what the decisions cost at the output."""
    drawn = " of random data" if prices.is_random else ""
    sentence = (
        f"At the output ({prices.metric.title}, {counted(prices.samples, 'sample')}{drawn}) A is "
        f"{number(prices.left, 3)} and B {number(prices.right, 3)} from the float model"
    )
    if not prices.prices or not prices.difference:
        return sentence + "."
    shares = [(price.share, f"the {_short(price)}") for price in prices.prices]
    kernel = prices.kernel / (prices.difference * prices.metric.harm)
    if abs(kernel) >= NOTABLE:
        shares.append((kernel, "what the real kernels compute otherwise than the graphs say"))
    shares.sort(key=lambda each: -abs(each[0]))
    parts = [
        f"{percent(share, 0)} {'is ' if place == 0 else ''}{words}"
        for place, (share, words) in enumerate(s for s in shares if s[0] >= _NOTHING)
    ]
    against = [(words, percent(share, 0)) for share, words in shares if share <= -_NOTHING]
    idle = [words for share, words in shares if abs(share) < _NOTHING]
    said = [
        f". Of the difference {listed(parts[:_SAID])}" if parts else "",
        f"; {listed([f'{words} ({share})' for words, share in against[:_SAID]])} "
        f"{_verb([words for words, _ in against], 'works', 'work')} against it",
        f"; {listed(idle[:_SAID])} {_verb(idle, 'is', 'are')} worth nothing",
    ]
    kept = [words for words, any_ in zip(said, (parts, against, idle), strict=True) if any_]
    return sentence + "".join(kept) + "."


def _verb(subjects: Sequence[str], one: str, many: str) -> str:
    plural = len(subjects) > 1 or subjects[:1] in (["the activations"], ["the scales"])
    return many if plural else one


def _short(price: Price) -> str:
    return {"left in float": "weights left in float"}.get(price.unit.name, price.unit.name)
