"""Which elements share a scale, on two sides that lie differently."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from foldmark.compare.align import Match
from foldmark.compare.arrangement import PLAIN, arrangements, rotary
from foldmark.compare.blocks import shared_scales
from foldmark.formats.opening import open_artefact
from foldmark.formats.stored import StoredTensor

ROWS, COLUMNS, PER_TENSOR = "per axis 0", "per axis 1", "per tensor"


def stored(folder: Path, shape: tuple[int, ...], scale: tuple[int, ...]) -> StoredTensor:
    """Write a weight with scales of a shape, and read it."""
    path = folder / f"{'x'.join(map(str, (*shape, 0, *scale)))}.safetensors"
    save_file({"w": np.ones(shape, np.int8), "w_scale": np.ones(scale, np.float32)}, path)
    (tensor,) = open_artefact(path).tensors
    return tensor


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((8, 1), (8, 1), None),
        ((8, 1), (1, 1), (ROWS, PER_TENSOR)),
        ((8, 2), (8, 4), ("groups of 32 along axis 1", "groups of 16 along axis 1")),
    ],
)
def test_as_it_lies(
    tmp_path: Path,
    left: tuple[int, ...],
    right: tuple[int, ...],
    expected: tuple[str, str] | None,
) -> None:
    one, other = (stored(tmp_path, (8, 64), scale) for scale in (left, right))
    assert shared_scales(Match(one, (other,), PLAIN, "")) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((8, 1), (1, 8), None),  # rows here, columns there: the same elements
        ((8, 2), (2, 8), None),
        ((8, 1), (64, 1), (ROWS, COLUMNS)),
        ((8, 2), (1, 8), ("groups of 32 along axis 1", ROWS)),
    ],
)
def test_transposed(
    tmp_path: Path,
    left: tuple[int, ...],
    right: tuple[int, ...],
    expected: tuple[str, str] | None,
) -> None:
    one, other = stored(tmp_path, (8, 64), left), stored(tmp_path, (64, 8), right)
    (turn,) = (each for each in arrangements((8, 64), (64, 8)) if each.transposed)
    assert shared_scales(Match(one, (other,), turn, "")) == expected


@pytest.mark.parametrize(("scale", "expected"), [((16, 1), None), ((1, 1), (ROWS, PER_TENSOR))])
def test_in_another_order_of_rows(
    tmp_path: Path, scale: tuple[int, ...], expected: tuple[str, str] | None
) -> None:
    one, other = stored(tmp_path, (16, 64), (16, 1)), stored(tmp_path, (16, 64), scale)
    assert shared_scales(Match(one, (other,), rotary(8, 16, back=False), "")) == expected
