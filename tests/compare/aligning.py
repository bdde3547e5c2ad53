"""Two files aligned, and every match held to what it says."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from foldmark.compare.align import align
from foldmark.formats.opening import open_artefact


def arranged(
    tmp_path: Path, left: dict[str, np.ndarray], right: dict[str, np.ndarray]
) -> list[str]:
    """Align all of the left file, and return how each match was found."""
    save_file({k: np.ascontiguousarray(v) for k, v in left.items()}, tmp_path / "l.safetensors")
    save_file({k: np.ascontiguousarray(v) for k, v in right.items()}, tmp_path / "r.safetensors")
    tensors = [open_artefact(tmp_path / f"{side}.safetensors").tensors for side in "lr"]
    alignment = align(*tensors)
    assert not alignment.left_over
    for match in alignment.matches:
        np.testing.assert_array_equal(match.load_right(), left[match.left.name])
    return [match.evidence for match in alignment.matches]
