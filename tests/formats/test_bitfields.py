"""Fields of a row are packed as the oracle packs them, and each row begins a byte of its own."""

import numpy as np
import pytest

from foldmark.exact.packing import pack, stream
from foldmark.formats.bitfields import pack_fields, unpack_fields


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("length", [0, 1, 3, 7, 8, 9, 16, 37])
def test_rows_of_any_length(bits: int, length: int) -> None:
    draw = np.random.default_rng(bits * 100 + length)
    fields = draw.integers(0, 1 << bits, (2, 3, length)).astype(np.uint8)
    packed = pack_fields(fields, bits)
    size = -(-length * bits // 8)
    assert packed.shape == (2, 3, size)
    for row, found in zip(fields.reshape(6, -1), packed.reshape(6, -1), strict=True):
        assert bytes(found) == bytes(pack(row.tolist(), stream(bits)))[:size]
    assert np.array_equal(unpack_fields(packed, bits)[..., :length], fields)
