"""PyTorch state dicts: every tensor as PyTorch loads it, and no pickle that asks for more."""

import io
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from foldmark.compare.inspection import account_of, inspect_artefact
from foldmark.errors import FoldmarkError, HostileFile, NotSupported
from foldmark.formats.opening import open_artefact
from foldmark.formats.stored import Artefact, StoredTensor

# a storage of four float32 and a tensor that looks at it, as steps of a pickle
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0\x30X\x03\0\0\0cpuK\x04tQ"
VIEW = b"K\x00K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)R"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + VIEW + b"tR"


def saved(folder: Path, state: object) -> Artefact:
    torch.save(state, folder / "m.pt")
    return open_artefact(folder / "m.pt")


def tensor_of(artefact: Artefact, name: str) -> StoredTensor:
    tensor = artefact.find(name)
    assert tensor is not None
    return tensor


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's own bytes, as unsigned integers of its items' width."""
    kinds = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
    return tensor.detach().contiguous().view(kinds[tensor.element_size()]).numpy()


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
    artefact = saved(tmp_path, state)
    assert artefact.format_name == "PyTorch state dict"
    assert artefact.header_bytes + sum(t.nbytes for t in artefact.tensors) == artefact.size
    quantized = tensor_of(artefact, "l.weight")
    expected = codes.float() * state["l.weight_scale"]
    np.testing.assert_array_equal(quantized.load().dequantize(), expected.numpy())
    span = quantized.spans[0]
    assert path.read_bytes()[span.offset : span.offset + 48] == codes.numpy().tobytes()
    bias, deep = tensor_of(artefact, "bias"), tensor_of(artefact, "inner.deep")
    np.testing.assert_array_equal(bias.load().dequantize(), state["bias"].float().numpy())
    np.testing.assert_array_equal(deep.load().codes, np.arange(5))
    np.testing.assert_array_equal(tensor_of(artefact, "tied").load().codes, codes.numpy())


DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "bool",
)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    raw = torch.randint(0, 256, (6, 8 * dtype.itemsize), dtype=torch.uint8)
    whole = (raw & 1 if name == "bool" else raw).view(dtype)
    artefact = saved(tmp_path, {"w": whole, "cut": whole[1:3]})
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    for key in ("w", "cut"):
        tensor = tensor_of(artefact, key)
        assert tensor.layout.number_format == name
        codes = np.ascontiguousarray(tensor.load().codes)
        np.testing.assert_array_equal(codes.view(np.uint8), bits_of(loaded[key].view(torch.uint8)))


BASE = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5).contiguous()
WIDE = torch.arange(3 * 40_000, dtype=torch.int32).reshape(3, 40_000)
VIEWS: Mapping[str, torch.Tensor] = {
    "transposed": BASE[0, 0].T,
    "permuted": BASE.permute(2, 0, 3, 1),
    "channels last": BASE.contiguous(memory_format=torch.channels_last),
    "every second": BASE[..., ::2],
    "every third row": BASE.reshape(12, 10)[1::3],
    "one column": BASE.reshape(12, 10)[:, 7],
    "a diagonal": BASE.reshape(12, 10).diagonal(),
    "repeated": BASE[0, 0, 0].expand(6, 5),
    "one item repeated": torch.tensor(2.5).expand(3, 2),
    "single axes": BASE[:1, :, :1, 2:3],
    "empty": BASE[:, :0],
    "a scalar": BASE[1, 1, 1, 1],
    "a parameter": torch.nn.Parameter(BASE.permute(3, 2, 1, 0)),
    "far apart": WIDE.T,
    "far apart and cut": WIDE.T[5::7, ::2],
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, tmp_path: Path) -> None:
    artefact = saved(tmp_path, {"w": VIEWS[view]})
    expected = torch.load(tmp_path / "m.pt", weights_only=True)["w"].detach().numpy()
    tensor = tensor_of(artefact, "w")
    codes = tensor.load().codes
    assert codes.dtype == expected.dtype
    np.testing.assert_array_equal(codes, expected)
    if expected.ndim:
        last = expected.shape[0]
        np.testing.assert_array_equal(tensor.rows(last - 1, last).codes, expected[-1:])
    inspection = inspect_artefact(artefact)
    assert sum(inspection.account.values()) == artefact.size


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_codes_with_a_scale(view: str, tmp_path: Path) -> None:
    codes = VIEWS[view].detach().to(torch.int8)
    state = {"l.weight": codes, "l.weight_scale": torch.tensor([0.5])}
    artefact = saved(tmp_path, state)
    tensor = tensor_of(artefact, "l.weight")
    assert tensor.layout.is_quantized
    np.testing.assert_array_equal(tensor.load().codes, codes.numpy())
    if (flat := tensor.unrolled()) is not None:
        for first, last in ((0, 1), (1, codes.numel()), (codes.numel() // 3, codes.numel() // 2)):
            expected = codes.reshape(-1)[first:last].numpy()
            np.testing.assert_array_equal(flat.rows(first, last).codes, expected)


def test_bytes_of_one_storage_count_once(tmp_path: Path) -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {"k": whole[:2], "v": whole[2:], "both": whole, "odd": whole[:, 1::2]}
    artefact = saved(tmp_path, state)
    assert [tensor.nbytes for tensor in artefact.tensors] == [48, 48, 0, 0]
    assert "above" in artefact.tensors[2].note
    for name, expected in state.items():
        np.testing.assert_array_equal(tensor_of(artefact, name).load().codes, expected.numpy())
    account = account_of(artefact)
    assert sum(account.values()) == artefact.size
    assert account["float tensors"] == whole.nbytes


def test_columns_between_columns_count_both(tmp_path: Path) -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    artefact = saved(tmp_path, {"even": whole[:, ::2], "odd": whole[:, 1::2]})
    assert [tensor.nbytes for tensor in artefact.tensors] == [48, 48]


def quantized(kind: torch.dtype, axis: int | None) -> torch.Tensor:
    numbers = torch.linspace(-4, 5, 3 * 4 * 2 * 2).reshape(3, 4, 2, 2)
    numbers = numbers.reshape(12, 4) if kind == torch.quint4x2 else numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these types are on their way out
        if axis is None:
            return torch.quantize_per_tensor(numbers, 0.04, 3, kind)
        count = numbers.shape[axis]
        scales, zeros = torch.linspace(0.03, 0.05, count), torch.arange(count)
        if kind == torch.quint4x2:
            zeros = zeros.float()
        return torch.quantize_per_channel(numbers, scales, zeros, axis, kind)


@pytest.mark.parametrize("kind", [torch.qint8, torch.quint8, torch.qint32])
@pytest.mark.parametrize(
    ("axis", "layout"), [(None, "plain"), (0, "plain"), (1, "plain"), (3, "plain"),
    (None, "channels last"), (0, "channels last"), (1, "channels last")]
)  # fmt: skip
def test_quantized_tensors(
    kind: torch.dtype, axis: int | None, layout: str, tmp_path: Path
) -> None:
    tensor = quantized(kind, axis)
    if layout == "channels last":
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    artefact = saved(tmp_path, {"a": torch.ones(2), "w": tensor})
    stored = tensor_of(artefact, "w")
    values = stored.load()
    np.testing.assert_array_equal(values.codes, tensor.int_repr().numpy())
    np.testing.assert_array_equal(values.dequantize(), tensor.dequantize().numpy())
    np.testing.assert_array_equal(stored.rows(1, 3).codes, tensor.int_repr().numpy()[1:3])
    assert stored.layout.granularity(stored.shape) == (
        "per tensor" if axis is None else f"per axis {axis}"
    )
    inspection = inspect_artefact(artefact)
    assert sum(inspection.account.values()) == artefact.size


def test_float_zero_points(tmp_path: Path) -> None:
    scales, zeros = torch.tensor([0.5, 0.25]), torch.tensor([1.5, 2.25])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.quint8)
    values = tensor_of(saved(tmp_path, {"w": tensor}), "w").load()
    np.testing.assert_array_equal(values.codes, tensor.int_repr().numpy())
    np.testing.assert_array_equal(values.dequantize(), tensor.dequantize().numpy())


def test_a_checkpoint_of_training(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": [torch.ones(2), (torch.zeros(3),)],
        "size": torch.Size([1, 2]),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "odd": [b"bytes", bytearray(b"more"), {1, 2}, 2j, 3 << 70, -1, 1.5, None, True],
    }
    artefact = saved(tmp_path, state)
    moment = optimizer.state_dict()["state"][1]["exp_avg"]
    np.testing.assert_array_equal(
        tensor_of(artefact, "optimizer.state.1.exp_avg").load().codes, moment.numpy()
    )
    assert tensor_of(artefact, "history.1.0").shape == (3,)
    assert tensor_of(artefact, "model.1.num_batches_tracked").shape == ()
    assert sum(account_of(artefact).values()) == artefact.size


def test_a_parameter_with_attributes(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.arange(4.0))
    parameter.tag = "kept"
    artefact = saved(tmp_path, {"w": parameter, "b": torch.nn.Buffer(torch.ones(2))})
    np.testing.assert_array_equal(tensor_of(artefact, "w").load().codes, np.arange(4.0))
    assert tensor_of(artefact, "b").shape == (2,)


def test_pytorch_is_not_needed(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    code = "import sys; sys.modules['torch'] = None\nfrom foldmark.cli.main import main; main()"
    command = [sys.executable, "-c", code, "inspect", str(tmp_path / "m.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 tensor" in done.stdout


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/foldmark-was-here",)


@pytest.mark.parametrize("state", [{"w": Attack()}, Attack()])
def test_pickles_that_ask_for_more_are_refused(tmp_path: Path, state: object) -> None:
    with pytest.raises(HostileFile, match=r"weights-only.*posix\.system"):
        saved(tmp_path, state)
    assert not Path("/tmp/foldmark-was-here").exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([torch.ones(2)], "no state dict; got list"),
        (torch.ones(2), "no state dict; got Tensor"),
        ({"w": torch.eye(2).to_sparse()}, "sparse"),
        ({"w": torch.ones(2, dtype=torch.complex64).conj()}, "conjugated"),
        ({"w": torch.ones(2, dtype=torch.complex128)}, "complex128"),
        ({"w": torch.ones(2, device="meta")}, "meta"),
        ({"w": torch.ones(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, "float4_e2m1fn_x2"),
        ({"w": quantized(torch.quint4x2, 0)}, "dtype quint4x2"),
        ({"w": torch.ones(9).unfold(0, 3, 1)}, "cross"),
        ({("a", 1): torch.ones(2)}, "no name; got tuple"),
    ],
)
def test_what_is_not_read(state: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=words):
        saved(tmp_path, state)


@pytest.mark.parametrize("protocol", [4, 5])
def test_later_protocols(protocol: int, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt", pickle_protocol=protocol)
    with pytest.raises(NotSupported, match="step"):
        open_artefact(tmp_path / "m.pt")


def test_a_bare_pickle_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(NotSupported, match="pickles older"):
        open_artefact(tmp_path / "m.pt")
    (tmp_path / "m.pt").write_bytes(pickle.dumps({"w": 1}, 2))
    with pytest.raises(NotSupported, match="pickles outside"):
        open_artefact(tmp_path / "m.pt")


def archive(folder: Path, pickled: bytes, **others: bytes) -> Artefact:
    """Open an archive of a pickle and a storage of four float32."""
    members = {"data.pkl": pickled, "data/0": bytes(16)} | {
        name.replace("__", "/"): content for name, content in others.items()
    }
    with zipfile.ZipFile(folder / "m.pt", "w") as written:
        for name, content in members.items():
            written.writestr(name if "/" in name[:2] else f"a/{name}", content)
    return open_artefact(folder / "m.pt")


def state_of(value: bytes) -> bytes:
    """Write {"w": value} as a pickle."""
    return b"\x80\x02}X\x01\0\0\0w" + value + b"s."


def changed(old: bytes, new: bytes) -> bytes:
    """A state dict of one tensor with some bytes of its description replaced."""
    assert old in TENSOR
    return state_of(TENSOR.replace(old, new))


def test_the_smallest_archive(tmp_path: Path) -> None:
    assert tensor_of(archive(tmp_path, state_of(TENSOR)), "w").shape == (2, 2)
    # without a folder, and with the byte order stated
    assert archive(tmp_path, state_of(TENSOR), byteorder=b"little").tensors


HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "nothing": (b"", "broken"),
    "no end": (state_of(TENSOR)[:-1], "broken"),
    "an empty stack": (b"\x80\x02.", "broken"),
    "no mark": (b"\x80\x02t.", "broken"),
    "an empty memo": (b"\x80\x02h\x07.", "broken"),
    "text that goes on": (b"\x80\x02X\xff\xff\xff\x7fw.", "broken"),
    "no text": (b"\x80\x02X\x01\0\0\0\xff.", "broken"),
    "pairs for a list": (b"\x80\x02]K\x00K\x01s.", "no dictionary"),
    "an odd number of pairs": (b"\x80\x02}(K\x00u.", "no dictionary"),
    "items for a dictionary": (b"\x80\x02}K\x00a.", "no list"),
    "attributes": (state_of(TENSOR + b"}b"), "sets attributes; got Tensor"),
    "a call of text": (state_of(b"X\x01\0\0\0w)R"), "no function; got str"),
    "a call of a dtype": (state_of(b"ctorch\nfloat32\n)R"), "no function; got torch.float32"),
    "a call without a tuple": (state_of(b"ccollections\nOrderedDict\nK\0R"), "no function"),
    "a module of torch": (state_of(b"ctorch.nn\nLinear\n"), "torch.nn.Linear"),
    "eval": (state_of(b"c__builtin__\neval\nX\x01\0\0\0w\x85R"), "builtins.eval"),
    "a name with a control character": (state_of(b"ctorch\n\x1b[2J\n"), "torch"),
    "a long that goes on": (b"\x80\x02\x8a\xff1.", "broken"),
    "no storage": (state_of(b"K\x01Q"), "no known form"),
    "a storage that is missing": (
        changed(b"X\x01\0\0\0\x30", b"X\x01\0\0\0\x39"),
        "not in the archive; got '9'",
    ),
    "a storage of another length": (
        changed(b"cpuK\x04", b"cpuK\x05"),
        "another length.*got 16; expected 20",
    ),
    "a storage of a negative length": (
        changed(b"cpuK\x04", b"cpuJ\xff\xff\xff\xff"),
        "no known form",
    ),
    "behind the storage": (changed(VIEW[:2], b"K\x01"), "reaches behind"),
    "more rows than there are": (
        changed(b"K\x02K\x02\x86", b"J\xff\xff\xff\x7fK\x02\x86"),
        "reaches behind",
    ),
    "2^63 rows": (
        changed(b"K\x02K\x02\x86", b"\x8a\x09" + bytes(7) + b"\x80\0K\x02\x86"),
        "does not take",
    ),
    "a negative stride": (
        changed(b"K\x02K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86"),
        "does not take",
    ),
    "a stride that is text": (
        changed(b"K\x02K\x01\x86", b"X\x01\0\0\0wK\x01\x86"),
        "does not take",
    ),
    "more strides than axes": (
        changed(b"K\x02K\x01\x86", b"K\x02K\x01K\x01\x87"),
        "does not take",
    ),
    "an item repeated beyond reason": (
        changed(b"K\x02K\x02\x86K\x02K\x01\x86", b"J\0\0\0\x40K\x02\x86K\x00K\x01\x86"),
        "beyond reason",
    ),
    "seventeen axes": (
        changed(
            b"K\x02K\x02\x86K\x02K\x01\x86", b"(" + b"K\1" * 17 + b"t(" + b"K\1" * 17 + b"t"
        ),
        "too many axes",
    ),
    "dictionaries inside dictionaries": (
        b"\x80\x02" + b"}X\x01\0\0\0w" * 50_000 + b"N" + b"s" * 50_000 + b".",
        "nested too deep",
    ),
    "tuples inside tuples": (state_of(b"N" + b"\x85" * 50_000), "nested too deep"),
    "a dictionary inside itself": (b"\x80\x02}q\0X\x01\0\0\0wh\0s.", "nested too deep"),
    "a list inside itself": (state_of(b"]q\0h\0a"), "nested too deep"),
    "a name twice": (
        b"\x80\x02}(" + 2 * (b"X\x01\0\0\0w" + TENSOR) + b"u.",
        "twice",
    ),
    "a name too long": (b"\x80\x02}X\0\x10\0\0" + b"w" * 4096 + TENSOR + b"s.", "name is too long"),
    "a step for every byte": (b"\x80\x02" + b"N" * (1 << 21) + b".", "too long"),
    "a pickle of 40 MB": (b"\x80\x02X\0\0\x80\2" + bytes(40 << 20), "pickle is too long"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles(case: str, tmp_path: Path) -> None:
    pickled, words = HOSTILE[case]
    with pytest.raises(HostileFile, match=words) as caught:
        archive(tmp_path, pickled)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_values_by_the_million_through_few_dictionaries(tmp_path: Path) -> None:
    """Nine dictionaries of a hundred pairs each, all of them the next: 100^8 values to look at."""
    pickled = b"\x80\x02}q\0"
    for level in range(1, 8):
        pairs = b"".join(b"K" + bytes([key, 104, level - 1]) for key in range(100))
        pickled += b"}q" + bytes([level]) + b"(" + pairs + b"u"
    with pytest.raises(HostileFile, match="more values"):
        archive(tmp_path, pickled + b".")


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ({"byteorder": b"big"}, NotSupported, "byte order.*big"),
        ({"byteorder": b"\xff" * 99}, NotSupported, "byte order"),
        ({"constants.pkl": b"\x80\x02)."}, NotSupported, "TorchScript"),
        ({"more__data.pkl": b"\x80\x02}."}, HostileFile, "two pickles"),
    ],
)
def test_hostile_archives(
    members: dict[str, bytes], error: type[FoldmarkError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        archive(tmp_path, state_of(TENSOR), **members)


def test_a_large_offset_of_the_archive(tmp_path: Path) -> None:
    """Bytes before the archive move every member, as a self-extracting archive has it."""
    archive(tmp_path, state_of(TENSOR), byteorder=b"little")
    stream = io.BytesIO(b"PK\x03\x04" + bytes(100) + (tmp_path / "m.pt").read_bytes())
    (tmp_path / "m.pt").write_bytes(stream.getvalue())
    np.testing.assert_array_equal(
        tensor_of(open_artefact(tmp_path / "m.pt"), "w").load().codes, np.zeros((2, 2))
    )
