"""GPTQ checkpoints beside AutoGPTQ's own layer: what each reads gives the same numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.autogptq import quant_linear

from foldmark import quantize
from foldmark.exact.catalog import UINT4
from foldmark.formats.opening import open_artefact
from foldmark.formats.safetensors_writer import write_gptq
from foldmark.tensors.block import per_group
from foldmark.tensors.scheme import asymmetric

INPUTS, OUTPUTS = 128, 64
RNG = np.random.default_rng(20274)


def weight_of(arrays: dict[str, torch.Tensor], bits: int, group: int) -> np.ndarray:
    """Load a checkpoint's arrays into AutoGPTQ's layer and return its weight, (out, in) float16.

    The layer gives x W^T in float16: with the identity for x, each number once, rounded once.
    """
    layer = quant_linear()(bits, group, INPUTS, OUTPUTS, bias=False, weight_dtype=torch.float16)
    layer.load_state_dict(arrays)
    with torch.no_grad():
        return layer(torch.eye(INPUTS, dtype=torch.float16)).numpy().T


def ours(path: Path) -> np.ndarray:
    (tensor,) = open_artefact(path).tensors
    return tensor.load().dequantize().astype(np.float16)


@pytest.mark.parametrize("group", [32, 128])
def test_what_foldmark_writes(tmp_path: Path, group: int) -> None:
    exact = RNG.normal(0, 0.1, (OUTPUTS, INPUTS)).astype(np.float32)
    tensor = quantize(exact, asymmetric(UINT4, per_group(group)))
    path = tmp_path / "m.safetensors"
    write_gptq(path, {"l.weight": tensor})
    arrays = {name.removeprefix("l."): array for name, array in load_file(path).items()}
    theirs = weight_of(arrays, 4, group)
    np.testing.assert_array_equal(theirs, ours(path))
    # the numbers that were quantized, their scale in float16
    scale = tensor.scale.astype(np.float16).astype(np.float32)
    centred = tensor.codes.astype(np.int32) - np.repeat(tensor.zero_point, group, axis=1)
    expected = centred * np.repeat(scale, group, axis=1)
    np.testing.assert_array_equal(theirs, expected.astype(np.float16))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_what_foldmark_reads(tmp_path: Path, bits: int, act_order: bool) -> None:
    groups = 4
    # zero points of 2^bits - 1 and 0 are left out: stored less one, what they become is each
    # tool's own
    stored = RNG.integers(0, 2**bits - 1, (groups, OUTPUTS))
    words = np.zeros((groups, OUTPUTS * bits // 32), np.uint64)
    for column in range(OUTPUTS):
        at = column * bits
        value = stored[:, column].astype(np.uint64) << np.uint64(at % 32)
        words[:, at // 32] |= value & np.uint64(0xFFFFFFFF)
        if at % 32 + bits > 32:
            words[:, at // 32 + 1] |= value >> np.uint64(32)
    g_idx = np.arange(INPUTS) // (INPUTS // groups)
    arrays = {
        "qweight": RNG.integers(0, 1 << 32, (INPUTS * bits // 32, OUTPUTS)).astype(np.uint32),
        "qzeros": words.astype(np.uint32),
        "scales": RNG.uniform(0.01, 0.1, (groups, OUTPUTS)).astype(np.float16),
        "g_idx": (RNG.permutation(g_idx) if act_order else g_idx).astype(np.int32),
    }
    made = {
        name: torch.from_numpy(array.view(np.int32) if array.dtype == np.uint32 else array)
        for name, array in arrays.items()
    }
    path = tmp_path / "m.safetensors"
    save_file({f"l.{name}": array for name, array in made.items()}, path)
    np.testing.assert_array_equal(weight_of(made, bits, INPUTS // groups), ours(path))
