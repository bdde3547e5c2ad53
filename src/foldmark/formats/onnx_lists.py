"""Numbers of an ONNX tensor that stand in a list, each in as many bytes as it needs.

    varint   seven bits a byte, the lowest first; the eighth is set where another byte follows
    1000     E8 07
    -1       FF FF FF FF FF FF FF FF FF 01, in lists of int32 too

Integers of all widths stand so, and floats of 16 and 8 bits as the integer of their bits. Where
the n-th number begins must be counted from the start: that is done once, block by block.
Source: the encoding of protocol buffers; onnx.proto for which list holds which type.
"""

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import HostileFile
from foldmark.formats.bitfields import unpack_fields
from foldmark.formats.entry import DTYPES, FIELDS
from foldmark.formats.stored import Span
from foldmark.formats.values import Array
from foldmark.kernels.compiled import compiled

__all__ = ["Listed"]

# Bytes between two places whose number is known.
_BLOCK = 1 << 16


@compiled
def _decode(raw, skipped, out):  # type: ignore[no-untyped-def]
    # raw (n,) uint8 -> out (m,) uint64, the first `skipped` numbers left out
    # returns how many are decoded, -1 where one takes more than ten bytes
    value, shift, count = np.uint64(0), np.uint64(0), -skipped
    for i in range(raw.size):
        if shift > 63:
            return -1
        value |= np.uint64(raw[i] & 0x7F) << shift
        shift += np.uint64(7)
        if raw[i] < 0x80:
            if count >= 0:
                out[count] = value
            count += 1
            if count == out.size:
                break
            value, shift = np.uint64(0), np.uint64(0)
    return count


class Listed:
    """A tensor's elements, read from their list in part.

    Args:
        name: what an error calls the tensor.
        number_format: a key of DTYPES or FIELDS; of FIELDS a number in the list is a byte.
        elements: how many the tensor's shape has.
        span: where the list lies.

    Raises:
        HostileFile: a list of another length.
    """

    def __init__(self, name: str, number_format: str, elements: int, span: Span) -> None:
        self.name, self.elements = name, elements
        self._form, self._span = number_format, span
        self._per_item = 8 // FIELDS[number_format][0] if number_format in FIELDS else 1
        self._before = _ends(span, name)
        found, needed = int(self._before[-1]), -(-elements // self._per_item)
        if found != needed:
            raise HostileFile(
                f"tensor {name!r} does not hold what its shape says",
                where=str(span.source.path),
                got=f"a list of {found} numbers",
                expected=f"{needed}",
            )

    def read(self, first: int, last: int) -> Array:
        """Read elements first..last in C order; fields within bytes come as uint8 or int8."""
        start, stop = first // self._per_item, -(-last // self._per_item)
        items = self._items(start, stop)
        if self._form == "bool":
            return items != 0
        if self._form not in FIELDS:
            dtype = DTYPES[self._form]
            if dtype.kind in "iu":
                return items.astype(dtype)
            return items.astype(f"u{dtype.itemsize}").view(dtype)
        bits, numbers = FIELDS[self._form]
        fields = unpack_fields(items.astype(np.uint8), bits)
        fields = fields[first - start * self._per_item : last - start * self._per_item]
        return fields if numbers is None else numbers[fields]

    def stored(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Read elements first..last in C order."""
        return self.read(first, last).reshape(shape)

    def load(self) -> Array:
        """Read everything."""
        return self.read(0, self.elements)

    def _items(self, first: int, last: int) -> NDArray[np.uint64]:
        """Decode numbers first..last of the list."""
        items = np.empty(last - first, np.uint64)
        if not items.size:
            return items
        # a number begins behind the end of the one before it, so that one's block is looked for
        block = int(np.searchsorted(self._before, first)) - 1 if first else 0
        behind = int(np.searchsorted(self._before, last))
        start, stop = block * _BLOCK, min(behind * _BLOCK, self._span.nbytes)
        raw = self._span.source.array(
            np.uint8, self._span.offset + start, stop - start, f"tensor {self.name!r}"
        )
        if _decode(raw, first - int(self._before[block]), items) != items.size:
            raise HostileFile(
                f"tensor {self.name!r} holds a number of more than ten bytes",
                where=str(self._span.source.path),
            )
        return items


def _ends(span: Span, name: str) -> NDArray[np.int64]:
    """Count how many numbers end before each block: (blocks + 1,)."""
    before = np.zeros(-(-span.nbytes // _BLOCK) + 1, np.int64)
    raw = np.empty(min(_BLOCK, span.nbytes), np.uint8)
    for block, start in enumerate(range(0, span.nbytes, _BLOCK)):
        piece = raw[: min(_BLOCK, span.nbytes - start)]
        span.source.fill(piece, span.offset + start, f"tensor {name!r}")
        before[block + 1] = np.count_nonzero(piece < 0x80)
    return np.cumsum(before)
