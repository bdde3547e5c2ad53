"""GPTQ on a row against the published algorithm in numpy: Cholesky factor, columns in order."""

from fractions import Fraction

import numpy as np
import pytest

from foldmark.errors import InvalidScheme
from foldmark.exact.catalog import INT4, INT4_NARROW
from foldmark.exact.gptq import gptq_row, hessian, inverse, quadratic_error


def by_cholesky(w: np.ndarray, H: np.ndarray, scale: float, low: int, high: int) -> list[int]:
    """Return the codes as the paper's own code finds them, from the upper Cholesky factor."""
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    left, codes = w.copy(), []
    for i in range(len(w)):
        code = int(np.clip(np.round(left[i] / scale), low, high))
        codes.append(code)
        left[i:] -= (left[i] - code * scale) / U[i, i] * U[i, i:]
    return codes


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_codes_are_those_of_the_published_algorithm(size: int) -> None:
    random = np.random.default_rng(size)
    compared = 0
    for _ in range(40):
        shared = random.normal(size=(size + 4, 1))
        X = shared + 0.7 * random.normal(size=(size + 4, size))
        H = X.T @ X + 0.01 * np.mean(np.diag(X.T @ X)) * np.eye(size)
        w, scale = random.normal(size=size), 0.3
        row = gptq_row(w.tolist(), np.linalg.inv(H).tolist(), scale, INT4)
        if any(abs(q % 1 - Fraction(1, 2)) < Fraction(1, 10**6) for q in row.quotients):
            continue
        assert list(row.codes) == by_cholesky(w, H, scale, INT4.minimum, INT4.maximum)
        compared += 1
    assert compared > 30


def test_it_beats_rounding_to_nearest_where_inputs_go_together() -> None:
    random = np.random.default_rng(0)
    better = 0
    for _ in range(50):
        shared = random.normal(size=(12, 1))
        X = shared + 0.5 * random.normal(size=(12, 4))
        H = [[float(h) for h in row] for row in hessian(X.tolist(), Fraction(1, 100))]
        P = [[float(p) for p in row] for row in inverse(H)]
        w, scale = random.normal(size=4).tolist(), 0.4
        codes = gptq_row(w, P, scale, INT4_NARROW).codes
        nearest = [INT4_NARROW.clip(round(x / scale)) for x in w]
        after = quadratic_error(w, [c * scale for c in codes], H)
        better += after <= quadratic_error(w, [c * scale for c in nearest], H)
    assert better >= 45


def test_hessian_and_inverse_agree_with_numpy() -> None:
    X = np.random.default_rng(3).normal(size=(9, 5))
    plain = X.T @ X
    damped = plain + 0.01 * np.mean(np.diag(plain)) * np.eye(5)
    H = np.array(hessian(X.tolist(), Fraction(1, 100)), dtype=float)
    np.testing.assert_allclose(H, damped, rtol=1e-13)
    np.testing.assert_allclose(
        np.array(inverse(H.tolist()), dtype=float), np.linalg.inv(H), rtol=1e-9
    )


def test_the_inverse_is_exact_and_finds_its_pivots() -> None:
    assert inverse([[0, 2], [4, 0]]) == [[0, Fraction(1, 4)], [Fraction(1, 2), 0]]
    with pytest.raises(InvalidScheme, match="singular"):
        inverse([[1, 2], [2, 4]])


def test_no_samples_and_no_weights() -> None:
    assert hessian([], Fraction(1, 100)) == []
    assert gptq_row([], [], 1.0, INT4).codes == ()
    assert quadratic_error([], [], []) == 0


def test_the_quadratic_error_is_that_of_the_output() -> None:
    random = np.random.default_rng(8)
    X, w, r = random.normal(size=(6, 3)), random.normal(size=3), random.normal(size=3)
    H = [[float(h) for h in row] for row in hessian(X.tolist(), Fraction(0))]
    expected = np.sum((X @ (w - r)) ** 2)
    assert float(quadratic_error(w.tolist(), r.tolist(), H)) == pytest.approx(expected, rel=1e-12)
