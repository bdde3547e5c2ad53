"""Hadamard matrices and rotations made of them: they spread one large channel over all.

Ashkboos et al. 2024, "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs" (arXiv 2404.00456):
with Q orthogonal, (x Q) (Q^T W) = x W, and every channel of x Q is a mean of all channels of x
with signs, so that none stands out.

Matrices: Sylvester's for powers of two (H_2n = [[H, H], [H, -H]]), Paley's two constructions
from the squares modulo a prime, and products of them.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import InvalidScheme

__all__ = ["block_order", "hadamard", "mean_keeping_rotation", "rotation"]

Floats = NDArray[np.float64]


def hadamard(order: int) -> NDArray[np.int64] | None:
    """Return a matrix of +1 and -1 with H H^T = order I, None where no construction here has one.

    Its first row and its first column are +1. (order, order)
    """
    if order < 1:
        raise InvalidScheme("a Hadamard matrix has at least one row", got=str(order))
    found = _hadamard(order)
    if found is None:
        return None
    signed = found * found[0][None, :]
    return signed * signed[:, :1]


@cache
def _hadamard(order: int) -> NDArray[np.int64] | None:
    if order == 1:
        return np.ones((1, 1), np.int64)
    if order == 2:
        return np.array([[1, 1], [1, -1]])
    if order % 4:
        return None
    half = _hadamard(order // 2)
    if half is not None:
        return np.kron(np.array([[1, 1], [1, -1]]), half)
    paley = _first_paley(order)
    return paley if paley is not None else _second_paley(order)


def _first_paley(order: int) -> NDArray[np.int64] | None:
    """Return I + S for a prime q = order - 1 = 3 mod 4, S skew with q's squares inside."""
    q = order - 1
    if q % 4 != 3 or not _is_prime(q):
        return None
    S = np.zeros((order, order), np.int64)
    S[0, 1:], S[1:, 0] = 1, -1
    S[1:, 1:] = _jacobsthal(q)
    return S + np.eye(order, dtype=np.int64)


def _second_paley(order: int) -> NDArray[np.int64] | None:
    """Return the matrix for a prime q = order / 2 - 1 = 1 mod 4, each entry a block of 2 x 2."""
    q = order // 2 - 1
    if q % 4 != 1 or not _is_prime(q):
        return None
    C = np.zeros((q + 1, q + 1), np.int64)
    C[0, 1:] = C[1:, 0] = 1
    C[1:, 1:] = _jacobsthal(q)
    diagonal, other = np.array([[1, -1], [-1, -1]]), np.array([[1, 1], [1, -1]])
    return np.kron(C, other) + np.kron(np.eye(q + 1, dtype=np.int64), diagonal)


def _jacobsthal(q: int) -> NDArray[np.int64]:
    """Return chi(i - j): +1 for squares modulo q, -1 for the others, 0 on the diagonal."""
    chi = np.full(q, -1)
    chi[(np.arange(q) ** 2) % q] = 1
    chi[0] = 0
    i = np.arange(q)
    return chi[(i[:, None] - i) % q]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def block_order(size: int) -> int:
    """Return the largest divisor of `size` that has a Hadamard matrix here."""
    return next(n for n in range(size, 0, -1) if size % n == 0 and _hadamard(n) is not None)


def rotation(size: int, seed: int = 0) -> Floats:
    """Return an orthogonal Q = D H / sqrt(n), D signs drawn from the seed.

    (size, size); of blocks along the diagonal where only a divisor of `size` has an H.
    """
    H = _blocks(size)
    return _signs(size, seed)[:, None] * H


def mean_keeping_rotation(size: int, seed: int = 0) -> Floats:
    """Return an orthogonal Q with 1 Q = 1: x Q has the mean of x.

        Q = H D H^T / n, D signs, +1 at the first row of each block of H

    H^T 1 is zero but at those rows, so D leaves it alone. With it a LayerNormalization stays
    what it is: it takes off the same mean and divides by the same root.
    """
    H = _blocks(size)
    D = _signs(size, seed)
    D[:: block_order(size)] = 1
    return (H * D) @ H.T


def _blocks(size: int) -> Floats:
    order = block_order(size)
    H = hadamard(order)
    assert H is not None
    return np.asarray(np.kron(np.eye(size // order), H / np.sqrt(order)))


def _signs(size: int, seed: int) -> Floats:
    up = np.random.default_rng(seed).integers(0, 2, size).astype(bool)
    return np.where(up, 1.0, -1.0)
