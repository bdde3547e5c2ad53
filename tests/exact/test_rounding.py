"""Rounding: a table that tells every rule from every other, and the inputs where two part."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldmark.exact.rounding import Rounding, round_stochastic, round_to_int, smallest_difference

R = Rounding
INPUTS = [Fraction(n, 4) for n in (-7, -6, -5, -3, -2, -1, 0, 1, 2, 3, 5, 6, 7, 10)]
ROUNDED = {
    R.HALF_EVEN: [-2, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2],
    R.HALF_AWAY: [-2, -2, -1, -1, -1, 0, 0, 0, 1, 1, 1, 2, 2, 3],
    R.HALF_UP: [-2, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3],
    R.HALF_DOWN: [-2, -2, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 2, 2],
    R.TOWARD_ZERO: [-1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2],
    R.FLOOR: [-2, -2, -2, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 2],
    R.CEILING: [-1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3],
}


@pytest.mark.parametrize("rounding", Rounding)
def test_table(rounding: Rounding) -> None:
    assert [round_to_int(value, rounding) for value in INPUTS] == ROUNDED[rounding]


def test_table_tells_every_rule_from_every_other() -> None:
    assert len({tuple(row) for row in ROUNDED.values()}) == len(Rounding)


@given(st.fractions())
def test_half_even_is_pythons_own(value: Fraction) -> None:
    assert round_to_int(value, R.HALF_EVEN) == round(value)


@given(st.fractions(), st.sampled_from(Rounding))
def test_never_farther_than_one_and_exact_on_integers(value: Fraction, rounding: Rounding) -> None:
    rounded = round_to_int(value, rounding)
    assert abs(rounded - value) < 1
    assert round_to_int(Fraction(rounded), rounding) == rounded


@pytest.mark.parametrize("first", Rounding)
@pytest.mark.parametrize("second", Rounding)
def test_smallest_difference(first: Rounding, second: Rounding) -> None:
    value = smallest_difference(first, second)
    if value is None:
        assert first == second
        return
    assert round_to_int(value, first) != round_to_int(value, second)
    nearer = (Fraction(n, 64) for n in range(-128, 129) if abs(Fraction(n, 64)) < abs(value))
    ties_only = value.denominator == 2
    for other in nearer:
        if ties_only or other.denominator <= 4:
            assert round_to_int(other, first) == round_to_int(other, second)


def test_stochastic_rounds_up_for_the_fraction_of_all_bits() -> None:
    ups = [round_stochastic(Fraction(-11, 8), bits, 3) for bits in range(8)]
    assert sum(ups) == -11  # the mean over all bits is the value itself
    assert set(ups) == {-2, -1}


def test_stochastic_refuses_bits_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"2\*\*3"):
        round_stochastic(Fraction(1, 2), 8, 3)
