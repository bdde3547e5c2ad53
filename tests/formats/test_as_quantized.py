"""Every reader's tensors as QuantizedTensor: the same numbers, the same codes, where they lie."""

from pathlib import Path

import numpy as np
import pytest
from tests.formats.seeds import FORMATS, seed_files, write_files

from foldmark import load
from foldmark.errors import NotSupported
from foldmark.formats.stored import StoredTensor
from foldmark.tensors.quantized import QuantizedTensor


def opened(name: str, folder: Path) -> list[StoredTensor]:
    return list(load(str(write_files(folder, seed_files(name)))).tensors)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "npy"])
def test_the_same_numbers(name: str, tmp_path: Path) -> None:
    made: dict[str, QuantizedTensor] = {}
    for tensor in opened(name, tmp_path):
        values = tensor.load()
        plain = values.codebook is None and values.codes.dtype.kind in "iu"
        if not (tensor.layout.is_quantized and plain and values.group is None):
            with pytest.raises(NotSupported, match="no codes, scale"):
                tensor.quantized()
            continue
        with np.errstate(all="ignore"):
            quantized = tensor.quantized()
            expected = values.dequantize()
            np.testing.assert_array_equal(
                quantized.dequantize().view(np.uint32)[~np.isnan(expected)],
                expected.view(np.uint32)[~np.isnan(expected)],
            )
        assert values.scale is not None
        np.testing.assert_array_equal(quantized.codes, values.codes)
        np.testing.assert_array_equal(quantized.scale.reshape(-1), values.scale.reshape(-1))
        assert quantized.rule.name == f"as stored: {tensor.layout.packing}"
        assert quantized.scheme.codes.name == tensor.layout.number_format
        assert quantized.shape == tensor.shape
        if name != "ONNX":  # bytes too few to be found in the model's file have no place
            assert tensor.spans[0].offset > 0 or name in ("OpenVINO IR", "npz, compressed")
        made[tensor.name] = quantized
    assert made


def test_one_at_a_time(tmp_path: Path) -> None:
    opened("compressed-tensors", tmp_path)
    artefact = load(tmp_path / "m.safetensors")
    pairs = artefact.quantized()
    with pytest.raises(NotSupported, match="table"):  # mxfp4 is among them
        for stored, quantized in pairs:
            assert stored.name.endswith(".weight")
            assert isinstance(quantized, QuantizedTensor)
