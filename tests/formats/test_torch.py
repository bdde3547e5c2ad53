"""PyTorch state dicts: the tensors, where they lie, and no pickle that asks for more."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.opening import open_artefact


def test_state_dict(tmp_path: Path) -> None:
    codes = torch.randint(-127, 128, (6, 8), dtype=torch.int8)
    state = {
        "l.weight": codes,
        "l.weight_scale": torch.rand(6, 1),
        "bias": torch.rand(6).bfloat16(),
        "inner": {"deep": torch.arange(5)},
        "tied": codes,
        "version": 3,
    }
    path = tmp_path / "m.pt"
    torch.save(state, path)
    artefact = open_artefact(path)
    assert artefact.format_name == "PyTorch state dict"
    assert artefact.header_bytes + sum(t.nbytes for t in artefact.tensors) == artefact.size
    quantized = artefact.find("l.weight")
    assert quantized is not None
    expected = codes.float() * state["l.weight_scale"]
    np.testing.assert_array_equal(quantized.load().dequantize(), expected.numpy())
    span = quantized.spans[0]
    assert path.read_bytes()[span.offset : span.offset + 48] == codes.numpy().tobytes()
    bias, deep = artefact.find("bias"), artefact.find("inner.deep")
    assert bias is not None
    assert deep is not None
    np.testing.assert_array_equal(bias.load().dequantize(), state["bias"].float().numpy())
    np.testing.assert_array_equal(deep.load().codes, np.arange(5))


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/foldmark-was-here",)


@pytest.mark.parametrize("state", [{"w": Attack()}, Attack()])
def test_pickles_that_ask_for_more_are_refused(tmp_path: Path, state: object) -> None:
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(HostileFile, match="weights-only"):
        open_artefact(tmp_path / "m.pt")
    assert not Path("/tmp/foldmark-was-here").exists()


def test_what_is_no_state_dict(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "m.pt")
    with pytest.raises(NotSupported, match="no state dict"):
        open_artefact(tmp_path / "m.pt")
    torch.save({"w": torch.ones(2, 3).T}, tmp_path / "m.pt")
    with pytest.raises(NotSupported, match="contiguous"):
        open_artefact(tmp_path / "m.pt")


def test_a_bare_pickle_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(NotSupported, match="pickles"):
        open_artefact(tmp_path / "m.pt")
