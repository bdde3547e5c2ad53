"""Step 7: integers only: multiply codes, accumulate, unfold once at the end."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from foldmark.exact.catalog import INT32 as INT32_FORMAT
from foldmark.exact.dot import integer_dot as exact_dot
from foldmark.lab import rules
from foldmark.lab.draws import gaussian
from foldmark.lab.exercise import (
    REAL,
    WIDE_CODE,
    Arguments,
    Function,
    Mistake,
    Parameter,
    Place,
    Sentence,
    Step,
)


def integer_dot(a: list[int], b: list[int]) -> int:
    """Return the exact sum of the products of codes."""
    return exact_dot(a, b)


def folded_dot(a: list[float], b: list[float]) -> float:
    """Return the dot product of the codes times (scale of a * scale of b)."""
    (codes_a, scale_a), (codes_b, scale_b) = rules.fold(a), rules.fold(b)
    return exact_dot(codes_a, codes_b) * (scale_a * scale_b)


def first_overflow(a: list[int], b: list[int]) -> int:
    """Return the index of the first product whose running sum leaves int32; -1 if none does."""
    total = 0
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        total += one * other
        if INT32_FORMAT.clip(total) != total:
            return index
    return -1


def _codes(random: Random) -> Iterator[Arguments]:
    yield ([], [])
    yield ([0], [-127])
    for _ in range(14):
        count = random.randint(1, 9)
        reach = random.choice((127, 127, 32767))
        a, b = ([random.randint(-reach, reach) for _ in range(count)] for _ in "ab")
        yield (a, b)


def _reals(random: Random) -> Iterator[Arguments]:
    yield ([], [])
    yield ([0.0], [1.0])
    yield ([0.0, -0.0], [0.0, 3.0])
    for _ in range(26):
        count = random.randint(2, 9)
        width = 10.0 ** random.randint(-2, 2)
        yield (gaussian(random, count, width), gaussian(random, count))


def _overflowing(random: Random) -> Iterator[Arguments]:
    yield ([], [])
    yield ([32767, 32767], [32767, 32767])
    yield ([32767, 32767, 32767], [32767, 32767, 32767])
    yield ([-32767, -32767, -32767], [32767, 32767, 32767])
    # 2^31 - 1 itself still fits, one more does not; -2^31 fits too.
    yield ([32767, 32767, 32767, 32767], [32767, 32767, 4, 1])
    yield ([32767, 32767, 32767, 1, 1], [32767, 32767, 3, 32766, 1])
    yield ([32767, 32767, 32767, 1, 1], [32767, 32767, 3, 32766, 32764])
    yield ([-32767, -32767, -32767, -32767], [32767, 32767, 4, 2])
    yield ([32767, 32767, 32767, -32767], [32767, 32767, 32767, 32767])
    for _ in range(12):
        count = random.randint(2, 8)
        a, b = (
            [random.choice((-1, 1, 1)) * random.randint(9000, 32767) for _ in range(count)]
            for _ in "ab"
        )
        yield (a, b)
    yield from _to_the_brim(random)


def _to_the_brim(random: Random) -> Iterator[Arguments]:
    """Draw products whose sums reach exactly 2^31 - 1, 2^31, -2^31 and -2^31 - 1."""
    for total in ((1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1):
        sign = 1 if total > 0 else -1
        factor = random.randint(30000, 32767)
        a, b, left = [], [], abs(total)
        while left:
            other = min(32767, left // factor) if left >= factor else left
            a.append(factor if left >= factor else 1)
            b.append(sign * other)
            left -= a[-1] * other
        yield (a, b)


def _dequantized_first(a: list[float], b: list[float]) -> float:
    return sum((x * y for x, y in zip(rules.folded(a), rules.folded(b), strict=True)), 0.0)


def _one_scale_at_a_time(a: list[float], b: list[float]) -> float:
    (codes_a, scale_a), (codes_b, scale_b) = rules.fold(a), rules.fold(b)
    return exact_dot(codes_a, codes_b) * scale_a * scale_b


def _float_dot(a: list[float], b: list[float]) -> float:
    return sum((x * y for x, y in zip(a, b, strict=True)), 0.0)


def _one_scale(a: list[float], b: list[float]) -> float:
    (codes_a, scale_a), (codes_b, _) = rules.fold(a), rules.fold(b)
    return exact_dot(codes_a, codes_b) * scale_a


def _overflow_at(low: int, high: int, offset: int = 0) -> Callable[..., Any]:
    def first(a: list[int], b: list[int]) -> int:
        total = 0
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            total += one * other
            if not low <= total <= high:
                return index + offset
        return -1

    return first


def _dot_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    products = [x * y for x, y in zip(*arguments, strict=True)]
    return (Sentence("products", {"products": products, "total": sum(products)}),)


def _folded_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    (codes_a, scale_a), (codes_b, scale_b) = map(rules.fold, arguments)
    fields = {
        "codes_a": codes_a,
        "codes_b": codes_b,
        "total": exact_dot(codes_a, codes_b),
        "scale_a": scale_a,
        "scale_b": scale_b,
        "product": scale_a * scale_b,
        "result": folded_dot(*arguments),
    }
    return (Sentence("folded_dot", fields),)


def _overflow_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    sums, total = [], 0
    for one, other in zip(*arguments, strict=True):
        total += one * other
        sums.append(total)
    return (Sentence("running_sums", {"sums": sums, "index": first_overflow(*arguments)}),)


_CODES = (Parameter("a", WIDE_CODE, ("n",)), Parameter("b", WIDE_CODE, ("n",)))
_REALS = (Parameter("a", REAL, ("n",)), Parameter("b", REAL, ("n",)))

STEP = Step(
    7,
    "integers",
    (
        Function(
            integer_dot,
            _CODES,
            "int",
            _codes,
            mistakes=(
                Mistake("float_codes", lambda a, b: float(exact_dot(a, b))),
                Mistake("no_sign", lambda a, b: sum(abs(x * y) for x, y in zip(a, b, strict=True))),
            ),
            work=_dot_work,
        ),
        Function(
            folded_dot,
            _REALS,
            "float",
            _reals,
            mistakes=(
                Mistake("dequantized_before_accumulating", _dequantized_first),
                Mistake("scales_one_at_a_time", _one_scale_at_a_time),
                Mistake("not_folded", _float_dot),
                Mistake("one_scale", _one_scale),
            ),
            work=_folded_work,
        ),
        Function(
            first_overflow,
            _CODES,
            "int",
            _overflowing,
            mistakes=(
                Mistake("overflow_at_2_31", _overflow_at(-(1 << 31) - 1, 1 << 31)),
                Mistake("unsigned_limit", _overflow_at(0, (1 << 32) - 1)),
                Mistake("low_side_forgotten", _overflow_at(-(1 << 70), (1 << 31) - 1)),
                Mistake("counted_from_one", _overflow_at(-(1 << 31), (1 << 31) - 1, 1)),
            ),
            work=_overflow_work,
        ),
    ),
)
