"""Codes, scales and zero points that lie each for itself: pieces are parts of the whole."""

import numpy as np
import pytest

from foldmark.formats.scaled_blocks import Held, ScaledBlocks
from foldmark.formats.values import Layout

CODES = np.arange(-36, 36, dtype=np.int8).reshape(9, 8)


@pytest.mark.parametrize("block", [(3, 4), (2, 8), (4, 1), (9, 2), (1, 8)])
def test_a_tensor_walked_by_its_step_is_the_tensor(block):
    counts = tuple(-(-n // b) for n, b in zip(CODES.shape, block, strict=True))
    scale = (1 + np.arange(np.prod(counts), dtype=np.float32)).reshape(counts)
    zeros = np.arange(np.prod(counts), dtype=np.int8).reshape(counts)
    wide, offsets = (
        np.repeat(np.repeat(each, block[0], 0), block[1], 1)[:9, :8] for each in (scale, zeros)
    )
    expected = (CODES.astype(np.float32) - offsets) * wide
    blocks = ScaledBlocks(Held(CODES), Held(scale), Held(zeros), CODES.shape, block)
    layout = Layout("int8", block, "float32", "stored", "made here")
    tensor = blocks.tensor("w", layout, (), {})
    assert tensor.shape == CODES.shape
    many = 2 * tensor.walk_step  # with a step that is too small, such pieces cut blocks apart
    pieces = [tensor.rows(start, min(start + many, 9)) for start in range(0, 9, many)]
    walked = np.concatenate([piece.dequantize() for piece in pieces])
    assert walked.tobytes() == expected.tobytes()
    assert tensor.load().dequantize().tobytes() == expected.tobytes()
