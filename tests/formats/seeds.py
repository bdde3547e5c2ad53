"""Small honest files of every format, and ways to turn them into lies."""

import io
import json
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FORMATS", "mutants", "seed_files", "write_files"]

Files = dict[str, bytes]
_RNG = np.random.default_rng(20266)


def _codes(*shape: int) -> np.ndarray:
    return _RNG.integers(-127, 128, shape).astype(np.int8)


def _gguf() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_array("tokenizer.ggml.tokens", ["a", "bb"])
        writer.add_float32("rope", 1.5)
        for kind in ("Q8_0", "Q4_0", "Q5_1", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "TQ1_0", "MXFP4"):
            number = gguf.GGMLQuantizationType[kind]
            elements, nbytes = gguf.GGML_QUANT_SIZES[number]
            raw = _RNG.integers(0, 256, (2, nbytes * (256 // elements)), dtype=np.uint8)
            writer.add_tensor(kind, raw, raw_dtype=number)
        writer.add_tensor("norm", np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return {"m.gguf": path.read_bytes()}


def _safetensors_bytes(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    from safetensors.numpy import save

    return save(arrays, metadata or None)


def _safetensors() -> Files:
    state = json.dumps({"shape": [4, 64], "blocksize": 64, "quant_type": "nf4"}).encode()
    arrays = {
        "a.qweight": _codes(8, 8).view(np.int32).reshape(2, 8),
        "a.qzeros": np.zeros((1, 1), np.int32),
        "a.scales": np.ones((1, 8), np.float16),
        "a.g_idx": np.zeros(16, np.int32),
        "b.qweight": np.zeros((8, 1), np.int32),
        "b.qzeros": np.zeros((1, 1), np.int32),
        "b.scales": np.ones((1, 8), np.float16),
        "c.weight_packed": np.zeros((4, 2), np.int32),
        "c.weight_scale": np.ones((4, 2), np.float16),
        "c.weight_shape": np.array([4, 16]),
        "d.weight": _codes(4, 6),
        "d.weight_scale": np.ones((4, 1), np.float32),
        "e.weight": np.zeros((128, 1), np.uint8),
        "e.weight.absmax": np.ones(4, np.float32),
        "e.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        "e.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
        "f.weight": _codes(3, 4),
        "f.SCB": np.ones(3, np.float32),
        "g.w._data._data": np.zeros((2, 8), np.uint8),
        "g.w._scale": np.ones((4, 1), np.float32),
        "g.w._shift": np.ones((4, 1), np.float32),
    }
    return {"m.safetensors": _safetensors_bytes(arrays, {"format": "pt"})}


def _layout(arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> Files:
    return {"m.safetensors": _safetensors_bytes(arrays, metadata or {})}


def _gptq() -> Files:
    words = _RNG.integers(-(2**31), 2**31, (8, 8)).astype(np.int32)
    return _layout(
        {
            "a.qweight": words[:2],
            "a.qzeros": words[:2, :1],
            "a.scales": np.ones((2, 8), np.float16),
            "a.g_idx": np.array([0, 1] * 8, np.int32),
            "b.qweight": words[:3, :],
            "b.qzeros": np.zeros((2, 1), np.int32),
            "b.scales": np.ones((2, 8), np.float16),
        }
    ) | {"quantize_config.json": b'{"bits": 4, "checkpoint_format": "gptq_v2"}'}


def _awq() -> Files:
    words = _RNG.integers(-(2**31), 2**31, (32, 2)).astype(np.int32)
    arrays = {"a.qweight": words, "a.qzeros": words[:2], "a.scales": np.ones((2, 16), np.float16)}
    return _layout(arrays)


def _compressed_tensors() -> Files:
    packed = _RNG.integers(0, 256, (4, 16), dtype=np.uint8)
    return _layout(
        {
            "a.weight_packed": packed.view(np.int32),
            "a.weight_scale": np.ones((4, 2), np.float16),
            "a.weight_zero_point": np.zeros((1, 2), np.int32),
            "a.weight_shape": np.array([4, 32]),
            "b.weight_packed": packed,
            "b.weight_scale": np.full((4, 1), 127, np.uint8),
            "c.weight_packed": packed,
            "c.weight_scale": np.ones((4, 2), ml_dtypes.float8_e4m3fn),
            "c.weight_global_scale": np.ones(1, np.float32),
            "d.weight": _codes(4, 6),
            "d.weight_scale": np.ones((4, 2), np.float32),
            "d.weight_zero_point": np.zeros((4, 2), np.int8),
        }
    )


def _bitsandbytes() -> Files:
    state = {"shape": [4, 64], "blocksize": 64, "quant_type": "nf4", "nested_blocksize": 256}
    state |= {"nested_offset": 0.5, "dtype": "float32"}
    return _layout(
        {
            "a.weight": _codes(3, 4),
            "a.SCB": np.ones(3, np.float32),
            "b.weight": _RNG.integers(0, 256, (128, 1), dtype=np.uint8),
            "b.weight.absmax": np.arange(4, dtype=np.uint8),
            "b.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
            "b.weight.nested_absmax": np.ones(1, np.float32),
            "b.weight.nested_quant_map": np.linspace(-1, 1, 256, dtype=np.float32),
            "b.weight.quant_state.bitsandbytes__nf4": np.frombuffer(
                json.dumps(state).encode(), np.uint8
            ),
        }
    )


def _quanto_and_torchao() -> Files:
    named = {"_type": "IntxUnpackedToInt8Tensor", "_data": {"target_dtype": {"_data": "int4"}}}
    return _layout(
        {
            "g.w._data._data": _RNG.integers(0, 256, (2, 8), dtype=np.uint8),
            "g.w._scale": np.ones((4, 1), np.float32),
            "g.w._shift": np.ones((4, 1), np.float32),
            "h.w._data": _codes(4, 8),
            "h.w._scale": np.ones((4, 1), np.float32),
            "t._weight_qdata": _codes(4, 8) >> 4,
            "t._weight_scale": np.ones((4, 2), np.float32),
            "t._weight_zero_point": np.zeros((4, 2), np.int8),
        },
        {"t.weight": json.dumps(named)},
    )


def _sharded() -> Files:
    one = _safetensors_bytes({"l.weight": _codes(4, 6)}, {})
    two = _safetensors_bytes({"l.weight_scale": np.ones((4, 1), np.float32)}, {})
    names = {"l.weight": "1.safetensors", "l.weight_scale": "2.safetensors"}
    index = json.dumps({"metadata": {}, "weight_map": names}).encode()
    return {"index.json": index, "1.safetensors": one, "2.safetensors": two}


def _onnx() -> Files:
    arrays = {
        "q": _codes(32, 8),
        "s": np.ones(8, np.float32),
        "z": np.zeros(8, np.int8),
        "v": _codes(8, 4),
        "vs": np.float32(0.5),
        "p": _RNG.integers(0, 256, (4, 2, 8), dtype=np.uint8),
        "ps": np.ones(8, np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Cast", ["v"], ["vf"], to=1),
        helper.make_node("Mul", ["vf", "vs"], ["vw"]),
        helper.make_node("MatMul", ["a", "vw"], ["b"]),
        helper.make_node(
            "MatMulNBits", ["x", "p", "ps"], ["y"], domain="com.microsoft", K=32, N=4, bits=4,
            block_size=16,
        ),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type, tensor.data_location = "far", 1, TensorProto.EXTERNAL
    tensor.dims.extend([4, 4])
    for key, value in (("location", "m.data"), ("offset", "0"), ("length", "64")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return {"m.onnx": model.SerializeToString(), "m.data": bytes(64)}


def _tflite() -> Files:
    from tests.formats.tflite_models import dequantizing_model

    content = dequantizing_model(_codes(4, 6), np.ones(4), np.zeros(4), 0, "int8")
    return {"m.tflite": content}


def _openvino() -> Files:
    layers = [
        ("Const", '<data element_type="i4" shape="4, 2, 8" offset="0" size="32"/>'),
        ("Convert", ""),
        ("Const", '<data element_type="i4" shape="4, 2, 1" offset="32" size="4"/>'),
        ("Convert", ""),
        ("Subtract", ""),
        ("Const", '<data element_type="f16" shape="4, 2, 1" offset="36" size="16"/>'),
        ("Multiply", ""),
        ("Result", ""),
    ]
    body = "".join(
        f'<layer id="{i}" name="l{i}" type="{kind}">{data}</layer>'
        for i, (kind, data) in enumerate(layers)
    )
    edges = [(0, 1, 0), (1, 4, 0), (2, 3, 0), (3, 4, 1), (4, 6, 0), (5, 6, 1), (6, 7, 0)]
    links = "".join(
        f'<edge from-layer="{a}" from-port="0" to-layer="{b}" to-port="{c}"/>' for a, b, c in edges
    )
    inner = f"<layers>{body}</layers><edges>{links}</edges>"
    text = f'<?xml version="1.0"?><net version="11">{inner}</net>'
    return {"m.xml": text.encode(), "m.bin": bytes(range(52))}


def _coreml() -> Files:
    from coremltools.proto import Model_pb2

    weights = bytearray(64)

    def blob(array: np.ndarray) -> int:
        weights.extend(bytes(-len(weights) % 64))
        at = len(weights)
        for number, width in ((0xDEADBEEF, 4), (1, 4), (array.nbytes, 8), (at + 64, 8)):
            weights.extend(number.to_bytes(width, "little"))
        weights.extend(bytes(40) + array.tobytes())
        return at

    model = Model_pb2.Model(specificationVersion=9)
    function = model.mlProgram.functions["main"]
    block = function.block_specializations["CoreML9"]

    def operation(kind: str, name: str, **inputs: tuple[int, np.ndarray, tuple[int, ...]]) -> None:
        one = block.operations.add(type=kind)
        one.outputs.add(name=name)
        for key, (number, array, shape) in inputs.items():
            value = (
                one.attributes["val"] if kind == "const" else one.inputs[key].arguments.add().value
            )
            value.type.tensorType.dataType = number
            value.type.tensorType.rank = len(shape)
            for size in shape:
                value.type.tensorType.dimensions.add().constant.size = size
            value.blobFileValue.fileName = "@model_path/weights/weight.bin"
            value.blobFileValue.offset = blob(array)

    nibbles = _RNG.integers(0, 256, 32, dtype=np.uint8)
    scale = np.ones((4, 2), np.float16)
    offset = np.full(4, 0x21, np.uint8)
    operation(
        "constexpr_blockwise_shift_scale", "w", data=(25, nibbles, (4, 16)),
        scale=(10, scale, (4, 2)), offset=(25, offset, (4, 2)),
    )  # fmt: skip
    operation(
        "constexpr_lut_to_dense", "p", indices=(36, nibbles, (8, 16)),
        lut=(11, np.arange(4, dtype=np.float32), (1, 1, 4, 1)),
    )  # fmt: skip
    operation("const", "b", val=(11, np.ones(16, np.float32), (16,)))
    manifest = {
        "rootModelIdentifier": "a",
        "itemInfoEntries": {"a": {"path": "com.apple.CoreML/model.mlmodel"}},
    }
    inside = "m.mlpackage/Data/com.apple.CoreML/"
    return {
        f"{inside}model.mlmodel": model.SerializeToString(),
        f"{inside}weights/weight.bin": bytes(weights),
        "m.mlpackage/Manifest.json": json.dumps(manifest).encode(),
    }


def _torch() -> Files:
    import torch

    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own quantized types are on their way out
        rows = torch.linspace(0.01, 0.02, 4), torch.arange(4)
        quantized = torch.quantize_per_channel(torch.ones(4, 6), *rows, 0, torch.qint8)
        whole = torch.quantize_per_tensor(torch.ones(4, 6), 0.1, 3, torch.quint8)
    state = {
        "l.weight": torch.ones(4, 6, dtype=torch.int8),
        "l.weight_scale": torch.ones(4),
        "turned": torch.nn.Parameter(torch.rand(3, 5).T),
        "inner": {"rows": quantized, "whole": whole, "eighth": torch.ones(8).to(torch.float8_e5m2)},
    }
    torch.save(state, stream)
    return {"m.pt": stream.getvalue()}


def _npy() -> Files:
    stream = io.BytesIO()
    np.save(stream, np.asfortranarray(_codes(4, 6)))
    return {"m.npy": stream.getvalue()}


def _npz() -> Files:
    stream = io.BytesIO()
    np.savez(stream, w=_codes(4, 6), w_scale=np.ones((4, 1), np.float32))
    return {"m.npz": stream.getvalue()}


def _npz_compressed() -> Files:
    stream = io.BytesIO()
    np.savez_compressed(stream, w=_codes(4, 6), w_scale=np.ones((4, 1), np.float32))
    return {"m.npz": stream.getvalue()}


# format -> its seed: files by name, the one to open first
FORMATS: dict[str, Callable[[], Files]] = {
    "GGUF": _gguf,
    "safetensors": _safetensors,
    "safetensors, sharded": _sharded,
    "GPTQ": _gptq,
    "AWQ": _awq,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "quanto and torchao": _quanto_and_torchao,
    "ONNX": _onnx,
    "TFLite": _tflite,
    "OpenVINO IR": _openvino,
    "Core ML": _coreml,
    "PyTorch": _torch,
    "npy": _npy,
    "npz": _npz,
    "npz, compressed": _npz_compressed,
}


def seed_files(name: str) -> Files:
    """Return the seed of a format."""
    return FORMATS[name]()


def write_files(folder: Path, files: Files) -> Path:
    """Write files into a folder and return what is to be opened."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    first = next(iter(files))
    return folder / first.split("/", 1)[0]


_NUMBERS = (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
_TEXTS = (
    b"\0",
    b"../",
    b"\x1b[2J",
    b"[" * 300,
    b"-1",
    b"9" * 25,
    b'"' * 3,
    b"{",
    b"1e999",
    b"/etc/x",
)


def mutants(files: Files, count: int, seed: int) -> Iterator[Files]:
    """Yield so many damaged copies: cut, flipped, overwritten with numbers that lie, spliced.

    The first ones are the cuts at each of the file's first and last bytes.
    """
    draw = random.Random(seed)
    main = next(iter(files))
    content = files[main]
    edges = [*range(1, min(400, len(content))), *range(max(1, len(content) - 60), len(content))]
    for index in range(count):
        if index < len(edges) and index < count // 3:
            yield files | {main: content[: edges[index]]}
            continue
        target = draw.choice(list(files))
        yield files | {target: _damaged(files[target], draw)}


def _damaged(content: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # Headers are where lies do most: half of all damage falls into the first quarter.
        reach = len(damaged) if draw.random() < 0.5 else max(1, len(damaged) // 4)
        at = draw.randrange(reach) if reach else 0
        match draw.randrange(7):
            case 0 if damaged:
                damaged[at] ^= 1 << draw.randrange(8)
            case 1 if damaged:
                damaged[at] = draw.randrange(256)
            case 2:
                size = draw.choice((1, 2, 4, 8))
                number = draw.choice(_NUMBERS) % 256**size
                damaged[at : at + size] = number.to_bytes(size, "little")
            case 3:
                del damaged[at : at + draw.choice((1, 4, 8, 64))]
            case 4:
                damaged[at:at] = damaged[at : at + draw.choice((1, 8, 64))]
            case 5:
                text = draw.choice(_TEXTS)
                damaged[at : at + (len(text) if draw.random() < 0.7 else 0)] = text
            case _:
                other = draw.randrange(len(damaged)) if damaged else 0
                size = draw.choice((2, 4, 8, 16))
                damaged[at : at + size] = damaged[other : other + size]
    return bytes(damaged)
