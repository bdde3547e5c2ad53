"""What foldmark writes, read by the tool whose format it is, gives the same numbers."""

from pathlib import Path

import gguf
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.numpy import load_file
from tests.surgery import nets

from foldmark import quantize
from foldmark.errors import FileUnreadable, InvalidScheme
from foldmark.exact.catalog import INT4, INT8, UINT4
from foldmark.formats import onnx_writer
from foldmark.formats.gguf_writer import write_gguf
from foldmark.formats.opening import open_artefact
from foldmark.formats.safetensors_writer import write_compressed_tensors, write_gptq
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Mode, Recipe
from foldmark.recipes.save import save_model
from foldmark.rules import GGML_Q4_0, GGML_Q4_1, GGML_Q8_0
from foldmark.tensors.block import per_axis, per_group, per_tensor
from foldmark.tensors.quantized import QuantizedTensor
from foldmark.tensors.scheme import Scheme, asymmetric, symmetric

WEIGHTS = np.random.default_rng(20271).normal(0, 0.1, (64, 128)).astype(np.float32)


@pytest.mark.parametrize(
    ("rule", "kind"), [(GGML_Q8_0, "Q8_0"), (GGML_Q4_0, "Q4_0"), (GGML_Q4_1, "Q4_1")]
)
def test_gguf(rule: object, kind: str, tmp_path: Path) -> None:
    tensor = quantize(WEIGHTS, Scheme(rule, per_group(32)))  # type: ignore[arg-type]
    path = tmp_path / "m.gguf"
    plain = WEIGHTS[0].astype(np.float16)
    write_gguf(path, {"w": tensor, "norm": plain}, {"general.architecture": "llama", "n": 3})
    reader = gguf.GGUFReader(path)
    theirs = {t.name: t for t in reader.tensors}
    number = gguf.GGMLQuantizationType[kind]
    assert theirs["w"].tensor_type == number
    # The file is what ggml's own quantizer writes, byte for byte, and decodes to our numbers.
    np.testing.assert_array_equal(theirs["w"].data, gguf.quantize(WEIGHTS, number))
    np.testing.assert_array_equal(theirs["norm"].data, plain)
    assert reader.get_field("general.architecture") is not None
    ours = open_artefact(path).find("w")
    assert ours is not None
    decoded = gguf.dequantize(theirs["w"].data, number)
    np.testing.assert_array_equal(ours.load().dequantize(), decoded)
    np.testing.assert_array_equal(tensor.dequantize(), decoded)


def decompressed(path: Path, **arguments: object) -> np.ndarray:
    from compressed_tensors.compressors import (
        IntQuantizationCompressor,
        PackedQuantizationCompressor,
    )
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    state = {k.removeprefix("l."): torch.from_numpy(v) for k, v in load_file(path).items()}
    packed = "weight_packed" in state
    tool = PackedQuantizationCompressor if packed else IntQuantizationCompressor
    return tool.decompress(state, scheme)["weight"].numpy()


def tensor_of(scheme: Scheme) -> QuantizedTensor:
    return quantize(WEIGHTS, scheme)


@pytest.mark.parametrize(
    ("scheme", "arguments"),
    [
        (symmetric(INT8, per_axis(0)), {"num_bits": 8, "strategy": "channel"}),
        (symmetric(INT8, per_tensor()), {"num_bits": 8, "strategy": "tensor"}),
        (symmetric(INT4, per_group(32)), {"num_bits": 4, "strategy": "group", "group_size": 32}),
        (
            asymmetric(INT4, per_group(64)),
            {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
        ),
        (
            asymmetric(INT8, per_axis(0)),
            {"num_bits": 8, "strategy": "channel", "symmetric": False},
        ),
    ],
)
def test_compressed_tensors(scheme: Scheme, arguments: dict[str, object], tmp_path: Path) -> None:
    tensor = tensor_of(scheme)
    path = tmp_path / "m.safetensors"
    write_compressed_tensors(path, {"l.weight": tensor})
    np.testing.assert_array_equal(decompressed(path, **arguments), tensor.dequantize())
    ours = open_artefact(path).find("l.weight")
    assert ours is not None
    np.testing.assert_array_equal(ours.load().dequantize(), tensor.dequantize())


@pytest.mark.parametrize("group", [32, 128])
def test_gptq(group: int, tmp_path: Path) -> None:
    tensor = tensor_of(asymmetric(UINT4, per_group(group)))
    path = tmp_path / "m.safetensors"
    write_gptq(path, {"l.weight": tensor, "l.bias": WEIGHTS[0]})
    arrays = load_file(path)
    # Field by field, as the form's definition says.
    word = arrays["l.qweight"].view(np.uint32)[3, 5]
    fields = [int(word) >> (4 * i) & 15 for i in range(8)]
    assert fields == tensor.codes[5, 24:32].tolist()
    zeros = arrays["l.qzeros"].view(np.uint32)[0, 1]
    stored = [int(zeros) >> (4 * i) & 15 for i in range(8)]
    assert stored == (tensor.zero_point[8:16, 0].astype(int) - 1).tolist()
    ours = open_artefact(path).find("l.weight")
    assert ours is not None
    scale = np.repeat(tensor.scale.astype(np.float16).astype(np.float32), group, axis=1)
    centred = tensor.codes.astype(np.int32) - np.repeat(
        tensor.zero_point.astype(np.int32), group, axis=1
    )
    np.testing.assert_array_equal(ours.load().dequantize(), centred * scale)
    assert ours.layout.packing == "GPTQ v1"


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with pytest.raises(InvalidScheme, match="groups of 32"):
        write_gguf(path, {"w": tensor_of(symmetric(INT8, per_axis(0)))}, {})
    with pytest.raises(InvalidScheme, match="not float16"):
        write_gguf(path, {"w": tensor_of(symmetric(INT8, per_group(32)))}, {})
    with pytest.raises(InvalidScheme, match="signed"):
        write_compressed_tensors(path, {"w": tensor_of(asymmetric(UINT4, per_group(32)))})
    with pytest.raises(InvalidScheme, match="GPTQ"):
        write_gptq(path, {"w": tensor_of(symmetric(INT4, per_group(32)))})
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileUnreadable, match="can't be written"):
        write_gguf(tmp_path / "no" / "m.gguf", {}, {})


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(per_channel=True),
        Recipe(per_channel=False),
        Recipe(mode=Mode.WEIGHT_ONLY, block_size=32),
        Recipe(mode=Mode.WEIGHT_ONLY, weight_bits=4, block_size=32, symmetric=False),
        Recipe(mode=Mode.WEIGHT_ONLY, weight_bits=4, block_size=16),
    ],
    ids=lambda r: f"{r.mode.value}-{r.weight_bits}-{r.block_size}-{r.per_channel}",
)
def test_onnx(
    recipe: Recipe, beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime decodes the weights of a written model to the numbers that are read here."""
    if beside:  # as a model too large for one file
        monkeypatch.setattr(onnx_writer, "_INLINE", 0)
    model = nets.matmul(nets.random(64, 32))
    path = tmp_path / "m.onnx"
    save_model(quantize_model(model, recipe, nets.samples(model)).model, path)
    assert (tmp_path / "m.onnx.data").exists() == beside
    weights = [t for t in open_artefact(path).tensors if t.layout.is_quantized and t.elements > 99]
    (tensor,) = weights
    ours = tensor.load().dequantize()
    written = onnx.load(path)
    if recipe.mode is Mode.STATIC:  # the value behind the weight's DequantizeLinear
        (node,) = (n for n in written.graph.node if tensor.name in n.input)
        written.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
        theirs = run(written, {"x": np.zeros((1, 64), np.float32)})[-1]
    else:  # the product with the identity: each number, and zeros that add nothing
        (node,) = written.graph.node
        exact = [a for a in node.attribute if a.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(exact)  # activations in float32, which is exact here
        theirs = run(written, {"x": np.eye(64, dtype=np.float32)})[0].T
    np.testing.assert_array_equal(theirs, ours)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)
