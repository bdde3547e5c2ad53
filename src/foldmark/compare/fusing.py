"""Where in a weight of one piece the rows of its parts lie: every way that tools have.

one under the other      query, key, value                     llama.cpp, vLLM, Phi
by heads                 for each key head its queries, the key, the value   GPT-NeoX, Falcon
in turn                  a row of the gate, a row of up        gpt-oss
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foldmark.formats.values import Array

__all__ = ["HEADS", "Fusion", "fusions", "orders_of_whole", "rotary_order"]

# Heads are as wide as one of these.
HEADS = (64, 128, 96, 80, 112, 256, 32, 48, 16, 8)
# A key head serves so many query heads in models that lie by heads.
_QUERIES = (1, 2, 4, 8, 16, 3, 6, 12)


@dataclass(frozen=True, eq=False)
class Fusion:
    """One way in which parts lie in a whole.

    Attributes:
        words: how, "" for one under the other.
        places: for each part the whole's row that each of its own rows is.
    """

    words: str
    places: tuple[Array, ...]

    @property
    def order(self) -> Array:
        """The whole's rows in the order of the parts, one under the other."""
        return np.concatenate(self.places)


def fusions(rows: tuple[int, ...]) -> Iterator[Fusion]:
    """Yield ways in which parts of so many rows lie in a whole, the plainest first.

    Args:
        rows: of query, key and value, or of gate and up.
    """
    ends = np.cumsum((0, *rows))
    yield Fusion("", tuple(np.arange(first, last) for first, last in pairwise(ends)))
    if len(rows) == 2 and rows[0] == rows[1] > 1:
        yield Fusion("in turn", (np.arange(0, ends[-1], 2), np.arange(1, ends[-1], 2)))
    if len(rows) == 3 and rows[1] == rows[2] and rows[0] % rows[1] == 0:
        queries = rows[0] // rows[1]
        for width in HEADS:
            if rows[1] % width == 0 and rows[1] > width:  # with one key head all ways are one
                yield _by_heads(rows[1] // width, queries, width)


def orders_of_whole(rows: int, parts: int) -> Iterator[tuple[str, Array]]:
    """Yield other orders of a whole's rows, none of whose parts is known, and how to call them.

    Each comes both ways: to parts one under the other, and from them.

    Args:
        rows: of the whole.
        parts: how many it is made of.
    """
    known: list[Fusion] = []
    if parts == 2 and rows % 2 == 0:
        known = list(fusions((rows // 2,) * 2))[1:]
    for queries in _QUERIES if parts == 3 else ():
        for width in HEADS:
            heads, rest = divmod(rows, (queries + 2) * width)
            if heads > 1 and not rest:
                known.append(_by_heads(heads, queries, width))
    for fusion in known:
        yield fusion.words, fusion.order
        yield fusion.words, np.argsort(fusion.order)


def rotary_order(width: int, rows: int, *, back: bool) -> Array:
    """Return the reordering that llama.cpp's converter gives to query and key rows.

    Within each head of `width` rows the two halves are interleaved; `back` undoes it.
    """
    order = np.arange(rows).reshape(-1, 2, width // 2).swapaxes(1, 2).reshape(-1)
    return np.argsort(order) if back else order


def _by_heads(heads: int, queries: int, width: int) -> Fusion:
    rows = np.arange(heads * (queries + 2) * width).reshape(heads, queries + 2, width)
    parts = (rows[:, :queries], rows[:, queries], rows[:, queries + 1])
    words = f"by heads of {width}" + (f", {queries} queries a key" if queries > 1 else "")
    return Fusion(words, tuple(part.reshape(-1) for part in parts))
