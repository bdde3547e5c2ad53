"""The cure that is put first, also where every cure is expected to make it worse."""

import pytest

from foldmark.ledger.cures import _Candidate, _preferred
from foldmark.ledger.treatments import Treatment


def candidate(predicted, bits):
    return _Candidate(((None, Treatment("", None, bits=bits)),), "", predicted=predicted)


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([(1.0, 32), (0.9, 16), (0.5, 8)], (0.9, 16)),
        ([(1.0, 32), (0.1, 8)], (1.0, 32)),
        ([(-1.0, 8), (-0.9, 32)], (-0.9, 32)),
        ([(-1.0, 8)], (-1.0, 8)),
        ([(0.0, 32), (-1.0, 8)], (0.0, 32)),
    ],
)
def test_fewest_bits_of_those_about_as_good(offers, chosen):
    found = _preferred([candidate(*offer) for offer in offers])
    assert (found.predicted, found.bits) == chosen
