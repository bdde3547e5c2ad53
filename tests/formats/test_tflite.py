"""TFLite against LiteRT's own DEQUANTIZE operator."""

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from tests.formats.tflite_models import dequantizing_model

from foldmark.errors import FoldmarkError, HostileFile
from foldmark.formats.opening import open_artefact

SHAPE = (6, 3, 5, 4)


def by_litert(path: Path, kind: str) -> np.ndarray:
    """Run DEQUANTIZE; where LiteRT has no kernel for it, use what LiteRT reads of the constant."""
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_path=str(path), experimental_op_resolver_type=plain)
    details = interpreter.get_tensor_details()[0]["quantization_parameters"]
    per_channel = len(details["scales"]) > 1
    interpreter.allocate_tensors()
    if not (per_channel and kind in ("int8", "int16")):
        interpreter.invoke()
        return interpreter.get_tensor(1)
    axis = details["quantized_dimension"]
    along = [-1 if i == axis else 1 for i in range(len(SHAPE))]
    codes = interpreter.get_tensor(0).astype(np.int32) - details["zero_points"].reshape(along)
    return codes.astype(np.float32) * details["scales"].reshape(along)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int4"])
@pytest.mark.parametrize("axis", [None, 0, 3])
def test_against_litert(tmp_path: Path, kind: str, axis: int | None) -> None:
    rng = np.random.default_rng(20265)
    bits = int(kind.lstrip("uint"))
    low = 0 if kind[0] == "u" else -(2 ** (bits - 1))
    codes = rng.integers(low, low + 2**bits, SHAPE)
    count = 1 if axis is None else SHAPE[axis]
    scale = rng.uniform(0.01, 0.1, count).astype(np.float32)
    # LiteRT wants symmetric codes where there is more than one scale, and for 16 bits.
    symmetric = axis is not None or kind in ("int16", "int4")
    zeros = np.zeros(count, int) if symmetric else rng.integers(low, low + 2**bits, count)
    path = tmp_path / "m.tflite"
    path.write_bytes(dequantizing_model(codes, scale, zeros, axis or 0, kind))
    artefact = open_artefact(path)
    (tensor,) = artefact.tensors
    ours = tensor.load().dequantize()
    # Its kernel multiplies out, scale * code - scale * zero point, and so rounds twice.
    np.testing.assert_allclose(ours, by_litert(path, kind), rtol=0, atol=scale.max() / 1000)
    pieces = [values.dequantize() for _, values in tensor.pieces(70)]
    np.testing.assert_array_equal(np.concatenate(pieces), ours)
    assert tensor.name == "w"
    assert artefact.header_bytes + tensor.nbytes == artefact.size


def test_every_cut_is_an_error_or_a_correct_read(tmp_path: Path) -> None:
    codes = np.arange(-8, 8).reshape(4, 4)
    whole = dequantizing_model(codes, np.ones(4), np.zeros(4), 0, "int8")
    path = tmp_path / "m.tflite"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        try:
            tensors = open_artefact(path).tensors
        except FoldmarkError:
            continue
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.load().codes, codes)


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(dequantizing_model(np.zeros((4, 4), int), np.ones(3), np.zeros(3), 0, "int8"))
    with pytest.raises(HostileFile, match="do not fit"):
        open_artefact(path)
