"""GPTQ's two versions beside GPTQModel's own layer, where that package is installed.

It wants a newer torch than the other tests and some gigabytes, so that the extra `test` leaves it
out: `pip install gptqmodel`, then this file alone.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from foldmark import quantize
from foldmark.exact.catalog import UINT4
from foldmark.formats.opening import open_artefact
from foldmark.formats.safetensors_writer import write_gptq
from foldmark.tensors.block import per_group
from foldmark.tensors.scheme import asymmetric

torch = pytest.importorskip("torch")
layers = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch")
INPUTS, OUTPUTS = 128, 64
RNG = np.random.default_rng(20275)


def layer_of(arrays: dict[str, np.ndarray], bits: int, group: int) -> Any:
    """Load a version 1 checkpoint's arrays into GPTQModel's layer, which makes version 2 of it."""
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    layer = layers.TorchLinear(bits, group, False, False, INPUTS, OUTPUTS)
    layer.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    convert_gptq_v1_to_v2_format_module(layer, bits, torch.int32)
    layer.post_init()
    return layer


def check_both(path: Path, bits: int, group: int) -> None:
    """Hold a file of version 1, and what GPTQModel makes of it, to the same numbers."""
    arrays = {name.removeprefix("l."): array for name, array in load_file(path).items()}
    layer = layer_of(arrays, bits, group)
    theirs = layer.dequantize_weight().numpy().T
    first = read(path)
    assert first.layout.packing == "GPTQ v1"
    np.testing.assert_array_equal(first.load().dequantize().astype(np.float16), theirs)
    folder = path.parent / "v2"
    folder.mkdir()
    kept = {f"l.{name}": layer.state_dict()[name].numpy() for name in arrays}
    save_file(kept, folder / "model.safetensors")
    settings = {"bits": bits, "checkpoint_format": "gptq_v2"}
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    second = read(folder / "model.safetensors")
    assert second.layout.packing == "GPTQ v2"
    np.testing.assert_array_equal(second.load().dequantize().astype(np.float16), theirs)


def read(path: Path) -> Any:
    (tensor,) = open_artefact(path).tensors
    return tensor


@pytest.mark.parametrize("group", [32, 128])
def test_what_foldmark_writes(tmp_path: Path, group: int) -> None:
    exact = RNG.normal(0, 0.1, (OUTPUTS, INPUTS)).astype(np.float32)
    write_gptq(
        tmp_path / "m.safetensors",
        {"l.weight": quantize(exact, asymmetric(UINT4, per_group(group)))},
    )
    check_both(tmp_path / "m.safetensors", 4, group)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_what_foldmark_reads(tmp_path: Path, bits: int, act_order: bool) -> None:
    """Zero points of 2^bits - 1 are left out: stored less one, they overflow into the next."""
    zeros = RNG.integers(0, 2**bits - 1, (4, OUTPUTS * bits // 32, 32 // bits)).astype(np.uint64)
    shifts = (np.arange(32 // bits) * bits).astype(np.uint64)
    g_idx = np.arange(INPUTS) // 32
    arrays = {
        "l.qweight": RNG.integers(0, 1 << 32, (INPUTS * bits // 32, OUTPUTS)).astype(np.uint32),
        "l.qzeros": (zeros << shifts).sum(axis=2).astype(np.uint32),
        "l.scales": RNG.uniform(0.01, 0.1, (4, OUTPUTS)).astype(np.float16),
        "l.g_idx": (RNG.permutation(g_idx) if act_order else g_idx).astype(np.int32),
    }
    arrays = {n: a.view(np.int32) if a.dtype == np.uint32 else a for n, a in arrays.items()}
    save_file(arrays, tmp_path / "m.safetensors")
    check_both(tmp_path / "m.safetensors", bits, 32)
