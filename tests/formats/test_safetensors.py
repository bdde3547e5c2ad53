"""safetensors: each tool's layout against the tool itself, and lies refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foldmark.errors import FoldmarkError, HostileFile, NotSupported, TruncatedFile
from foldmark.formats.safetensors_file import read_safetensors, read_sharded
from foldmark.formats.stored import Artefact, Part, StoredTensor

SEED = 20262


def weight(rows: int = 48, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(SEED)) / 16


def saved(path: Path, arrays: dict[str, torch.Tensor], **metadata: str) -> Artefact:
    save_file({k: v.contiguous() for k, v in arrays.items()}, path, metadata or None)
    artefact = read_safetensors(path)
    stored = sum(tensor.nbytes for tensor in artefact.tensors)
    assert stored + artefact.header_bytes == path.stat().st_size
    return artefact


def same_in_pieces(tensor: StoredTensor) -> np.ndarray:
    """Read whole and in small pieces; both must agree, and the whole is returned."""
    whole = tensor.load().dequantize()
    pieces = [values.dequantize() for _, values in tensor.pieces(600)]
    assert len(pieces) > 1
    np.testing.assert_array_equal(np.concatenate(pieces, axis=tensor.walk_axis), whole)
    return whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_plain(tmp_path: Path, dtype: torch.dtype) -> None:
    array = (weight(5, 7) * 100).to(dtype)
    tensor = saved(tmp_path / "m.safetensors", {"w": array, "empty": array[:0]}).find("w")
    assert tensor is not None
    assert tensor.layout.number_format == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(tensor.load().dequantize(), array.float().numpy())


def scheme_for(**arguments: object) -> object:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))


def qparams(w: torch.Tensor, group: int, bits: int, symmetric: bool) -> dict[str, torch.Tensor]:
    blocks = w.reshape(w.shape[0], -1, group)
    if symmetric:
        scale = blocks.abs().amax(-1) / (2**bits - 1) * 2
        return {"weight_scale": scale, "weight_zero_point": torch.zeros_like(scale).to(torch.int8)}
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    scale = (high - low) / (2**bits - 1)
    zero = (-(2 ** (bits - 1)) - low / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_packed(tmp_path: Path, bits: int, symmetric: bool) -> None:
    from compressed_tensors.compressors import PackedQuantizationCompressor as Packer

    scheme = scheme_for(num_bits=bits, strategy="group", group_size=64, symmetric=symmetric)
    w = weight()
    packed = Packer.compress({"weight": w} | qparams(w, 64, bits, symmetric), scheme)
    expected = Packer.decompress(packed, scheme)["weight"]
    artefact = saved(tmp_path / "m.safetensors", {f"l.{k}": v for k, v in packed.items()})
    (tensor,) = artefact.tensors
    assert (tensor.name, tensor.shape) == ("l.weight", tuple(w.shape))
    assert tensor.layout.number_format == f"int{bits}"
    assert tensor.layout.block == (1, 64)
    np.testing.assert_array_equal(same_in_pieces(tensor), expected.numpy())


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_compressed_tensors_int8(tmp_path: Path, strategy: str) -> None:
    from compressed_tensors.compressors import IntQuantizationCompressor as Packer

    w = weight()
    scale = w.abs().amax(1, keepdim=True) / 127.5 if strategy == "channel" else w.abs().amax()[None]
    scheme = scheme_for(num_bits=8, strategy=strategy, symmetric=True)
    state = {"weight": w, "weight_scale": scale, "weight_zero_point": torch.zeros_like(scale)}
    packed = Packer.compress(state, scheme)
    expected = Packer.decompress(packed, scheme)["weight"]
    (tensor,) = saved(tmp_path / "m.safetensors", {f"l.{k}": v for k, v in packed.items()}).tensors
    assert tensor.layout.granularity(tensor.shape) == (
        "per axis 0" if strategy == "channel" else "per tensor"
    )
    np.testing.assert_array_equal(same_in_pieces(tensor), expected.numpy())


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_compressed_tensors_four_bit_floats(tmp_path: Path, kind: str) -> None:
    from compressed_tensors.compressors import MXFP4PackedCompressor, NVFP4PackedCompressor

    w, group = weight(), 16 if kind == "nvfp4" else 32
    largest = w.reshape(w.shape[0], -1, group).abs().amax(-1)
    state = {"weight": w}
    if kind == "nvfp4":
        state["weight_global_scale"] = (448 * 6 / w.abs().amax()).float().reshape(1)
        scale = (state["weight_global_scale"] * largest / 6).to(torch.float8_e4m3fn).float()
    else:
        scale = 2.0 ** (torch.floor(torch.log2(largest)) - 2)
    state["weight_scale"] = scale
    packer = NVFP4PackedCompressor if kind == "nvfp4" else MXFP4PackedCompressor
    strategy = "tensor_group" if kind == "nvfp4" else "group"
    scheme = scheme_for(
        num_bits=4, type="float", strategy=strategy, group_size=group, symmetric=True
    )
    packed = packer.compress(state, scheme)
    artefact = saved(tmp_path / "m.safetensors", {f"l.{k}": v for k, v in packed.items()})
    (tensor,) = artefact.tensors
    packed["weight_scale"] = packed["weight_scale"]
    expected = packer.decompress(packed, scheme)["weight"]
    assert kind in tensor.layout.packing
    assert tensor.layout.block == (1, group)
    ours = torch.from_numpy(same_in_pieces(tensor)).to(expected.dtype)
    np.testing.assert_array_equal(ours.float().numpy(), expected.float().numpy())


def words(fields: np.ndarray, bits: int) -> np.ndarray:
    """Pack along axis 0, low bits first, the slow way: one Python integer a column."""
    rows, columns = fields.shape
    packed = np.zeros((rows * bits // 32, columns), np.uint32)
    for column in range(columns):
        stream = sum(int(code) << (bits * i) for i, code in enumerate(fields[:, column]))
        for word in range(len(packed)):
            packed[word, column] = stream >> (32 * word) & 0xFFFFFFFF
    return packed.view(np.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq(tmp_path: Path, bits: int, version: str, act_order: bool) -> None:
    rng = np.random.default_rng(SEED)
    inputs, outputs, groups = 128, 32, 4
    codes = rng.integers(0, 2**bits, (inputs, outputs))
    zeros = rng.integers(1, 2**bits, (groups, outputs))
    scales = rng.uniform(0.01, 0.1, (groups, outputs)).astype(np.float16)
    g_idx = np.arange(inputs) // (inputs // groups)
    if act_order:
        g_idx = rng.permutation(g_idx)
    stored = zeros if version == "gptq_v2" else zeros - 1
    arrays = {
        "l.qweight": torch.from_numpy(words(codes, bits)),
        "l.qzeros": torch.from_numpy(np.ascontiguousarray(words(stored.T, bits).T)),
        "l.scales": torch.from_numpy(scales),
        "l.g_idx": torch.from_numpy(g_idx.astype(np.int32)),
    }
    (tmp_path / "quantize_config.json").write_text(json.dumps({"checkpoint_format": version}))
    (tensor,) = saved(tmp_path / "m.safetensors", arrays).tensors
    expected = (codes - zeros[g_idx]).astype(np.float32) * scales[g_idx].astype(np.float32)
    np.testing.assert_array_equal(same_in_pieces(tensor), expected.T)
    assert tensor.layout.packing == ("GPTQ v2" if version == "gptq_v2" else "GPTQ v1")
    assert (tensor.load().group is not None) == act_order
    assert tensor.parts[Part.INDICES] == inputs * 4


def test_awq(tmp_path: Path) -> None:
    from compressed_tensors.entrypoints.convert import AutoAWQConverter

    rng = np.random.default_rng(SEED)
    inputs, outputs, group = 256, 64, 64
    arrays = {
        "l.qweight": torch.from_numpy(
            rng.integers(-(2**31), 2**31, (inputs, outputs // 8)).astype(np.int32)
        ),
        "l.qzeros": torch.from_numpy(
            rng.integers(-(2**31), 2**31, (inputs // group, outputs // 8)).astype(np.int32)
        ),
        "l.scales": torch.from_numpy(
            rng.uniform(0.01, 0.1, (inputs // group, outputs)).astype(np.float16)
        ),
    }
    (tensor,) = saved(tmp_path / "m.safetensors", arrays).tensors
    converter = AutoAWQConverter(bits=4, group_size=group, zero_point=True)
    codes, scale, zeros = converter._convert_gemm_module(
        arrays["l.qweight"], arrays["l.scales"], arrays["l.qzeros"]
    )
    values = tensor.load()
    difference = codes.numpy().astype(int) - np.repeat(zeros.numpy().astype(int), group, axis=1)
    ours = values.codes.astype(int) - np.repeat(values.zero_point, group, axis=1)
    np.testing.assert_array_equal(ours, difference)
    np.testing.assert_array_equal(values.scale, scale.float().numpy())
    same_in_pieces(tensor)


def test_bitsandbytes_int8(tmp_path: Path) -> None:
    from bitsandbytes import functional as bnb

    codes, largest, _ = bnb.int8_vectorwise_quant(weight().half())
    (tensor,) = saved(tmp_path / "m.safetensors", {"l.weight": codes, "l.SCB": largest}).tensors
    expected = bnb.int8_vectorwise_dequant(codes, largest).numpy()
    np.testing.assert_allclose(same_in_pieces(tensor), expected, rtol=3e-7)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(64, 512), (10, 96)])
def test_bitsandbytes_four_bits(
    tmp_path: Path, kind: str, nested: bool, shape: tuple[int, int]
) -> None:
    from bitsandbytes import functional as bnb

    w = weight(*shape)
    codes, state = bnb.quantize_4bit(w, quant_type=kind, compress_statistics=nested)
    arrays = {"l.weight": codes}
    arrays |= {f"l.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    (tensor,) = saved(tmp_path / "m.safetensors", arrays).tensors
    # Rows that are no whole blocks: the tool quantizes block by block over the flattened weight,
    # but its CPU kernel decodes row by row; flattened, it reads what it wrote.
    state.shape = torch.Size([1, w.numel()]) if shape[1] % 64 else state.shape
    expected = bnb.dequantize_4bit(codes, state).numpy().reshape(shape)
    np.testing.assert_array_equal(same_in_pieces(tensor).reshape(shape), expected)
    assert ("nested" in tensor.layout.packing) == nested
    table = tensor.load().codebook
    from foldmark.formats.codebooks import CODEBOOKS

    np.testing.assert_array_equal(table, CODEBOOKS[tensor.layout.number_format])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quanto(tmp_path: Path, bits: int) -> None:
    from optimum import quanto

    model = torch.nn.Sequential(torch.nn.Linear(256, 33, bias=False))
    quanto.quantize(model, weights={2: quanto.qint2, 4: quanto.qint4, 8: quanto.qint8}[bits])
    quanto.freeze(model)
    tensor = saved(tmp_path / "m.safetensors", model.state_dict()).find("0.weight")
    assert tensor is not None
    expected = model[0].weight.dequantize().detach().numpy()
    np.testing.assert_array_equal(same_in_pieces(tensor).reshape(expected.shape), expected)


@pytest.mark.parametrize("kind", ["Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor"])
def test_torchao(tmp_path: Path, kind: str) -> None:
    from torchao import quantization as ao
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    config = {
        "Int8Tensor": ao.Int8WeightOnlyConfig(),
        "IntxUnpackedToInt8Tensor": ao.IntxWeightOnlyConfig(weight_dtype=torch.int4),
        "Float8Tensor": ao.Float8WeightOnlyConfig(),
    }[kind]
    model = torch.nn.Sequential(torch.nn.Linear(256, 32))
    ao.quantize_(model, config)
    arrays, metadata = flatten_tensor_state_dict(model.state_dict())
    tensor = saved(tmp_path / "m.safetensors", arrays, **metadata).find("0.weight")
    assert tensor is not None
    expected = model[0].weight.dequantize().detach().numpy()
    np.testing.assert_array_equal(same_in_pieces(tensor), expected)
    assert tensor.layout.packing == f"torchao {kind}"


def test_torchao_types_of_one_kernel_are_refused_by_name(tmp_path: Path) -> None:
    arrays = {"m._weight_qdata": torch.zeros(4, 4, dtype=torch.int8), "m._weight_scale": weight()}
    with pytest.raises(NotSupported, match="Int4TilePackedTo4dTensor"):
        saved(
            tmp_path / "m.safetensors",
            arrays,
            **{"m.weight": '{"_type": "Int4TilePackedTo4dTensor"}'},
        )


@pytest.mark.parametrize("scale_shape", [(1,), (48,), (48, 1), (48, 4), (3, 2), ()])
def test_codes_with_a_scale_beside(tmp_path: Path, scale_shape: tuple[int, ...]) -> None:
    codes = torch.randint(-127, 128, (48, 256), dtype=torch.int8)
    scale = torch.rand(scale_shape) + 0.5
    (tensor,) = saved(tmp_path / "m.safetensors", {"l.qweight": codes, "l.scale": scale}).tensors
    full = scale.numpy().reshape(scale_shape if len(scale_shape) == 2 else (-1, 1))
    for axis in range(2):
        full = np.repeat(full, codes.shape[axis] // full.shape[axis], axis=axis)
    np.testing.assert_array_equal(same_in_pieces(tensor), codes.numpy().astype(np.float32) * full)


def test_shards(tmp_path: Path) -> None:
    codes = torch.randint(-127, 128, (4, 6), dtype=torch.int8)
    save_file({"l.weight": codes}, tmp_path / "a.safetensors")
    save_file({"l.weight_scale": torch.ones(4, 1)}, tmp_path / "b.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    names = {"l.weight": "a.safetensors", "l.weight_scale": "b.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    artefact = read_sharded(index)
    (tensor,) = artefact.tensors
    assert [file.path.name for file in artefact.files] == ["a.safetensors", "b.safetensors"]
    assert tensor.nbytes + artefact.header_bytes == artefact.size
    np.testing.assert_array_equal(tensor.load().dequantize(), codes.float().numpy())


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "x/y", "a\0b", "", ".."])
def test_shards_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(FoldmarkError):
        read_sharded(index)


def raw(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def described(shape: list[object], first: int, last: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"\x01", TruncatedFile, "length of the header"),
        (raw({}, length=2**63), HostileFile, "too long"),
        (raw({}, length=3), TruncatedFile, "behind the file"),
        (raw(b"[" * 5000), HostileFile, "not JSON"),
        (raw(b'{"a": 1, "a": 1}'), HostileFile, "twice"),
        (raw([]), HostileFile, "JSON table"),
        (raw(b"\xff\xfe"), HostileFile, "not JSON"),
        (raw({"w": 3}), HostileFile, "not described"),
        (raw({"w": {"dtype": "F32"}}), HostileFile, "not described"),
        (raw({"w": described([2**40, 2**40], 0, 8)}), HostileFile, "another length"),
        (raw({"w": described([-1], 0, 8)}), HostileFile, "impossible"),
        (raw({"w": described([True], 0, 4)}), HostileFile, "impossible"),
        (raw({"w": described([1.5], 0, 4)}), HostileFile, "impossible"),
        (raw({"w": described([2**63], 0, 4)}), HostileFile, "impossible"),
        (raw({"w": described([1] * 99, 0, 4)}), HostileFile, "impossible"),
        (raw({"w": described([2], 0, 8)}), TruncatedFile, "behind the file"),
        (raw({"w": described([2], 8, 0)}, b"\0" * 8), HostileFile, "another length"),
        (raw({"w": described([2], 0, 2, "F9")}, b"\0" * 8), NotSupported, "F9"),
        (
            raw({"a": described([2], 0, 8), "b": described([2], 4, 12)}, b"\0" * 12),
            HostileFile,
            "overlap",
        ),
        (raw({"__metadata__": [1]}), HostileFile, "__metadata__"),
    ],
)
def test_lies_are_refused(
    content: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(error, match=words):
        read_safetensors(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"qweight": ("i4", 8, 8), "qzeros": ("i4", 1, 7), "scales": ("f2", 1, 8)},
        {"qweight": ("i4", 8, 8), "qzeros": ("i4", 1, 1), "scales": ("f2", 1, 9)},
        {"qweight": ("i4", 0, 8), "qzeros": ("i4", 1, 1), "scales": ("f2", 1, 8)},
        {"weight": ("i1", 8, 8), "SCB": ("f4", 7)},
        {"weight": ("i1", 8, 8), "weight_scale": ("f4", 9, 1)},
        {"weight_packed": ("i4", 8, 8), "weight_scale": ("f4", 8, 1)},
        {"w._data._data": ("u1", 8, 8), "w._scale": ("f4", 99, 1), "w._shift": ("f4", 99, 1)},
    ],
)
def test_arrays_that_contradict_each_other(
    arrays: dict[str, tuple[str, *tuple[int, ...]]], tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    named = {f"l.{k}": torch.from_numpy(np.zeros(s, d)) for k, (d, *s) in arrays.items()}
    save_file(named, path)
    with pytest.raises(HostileFile):
        read_safetensors(path)
