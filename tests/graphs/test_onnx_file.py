"""A model file that is missing, cut short, foreign or hostile costs one clear line."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from foldmark.cli.main import run
from foldmark.errors import (
    FileUnreadable,
    FoldmarkError,
    FormatNotRecognised,
    HostileFile,
    TruncatedFile,
)
from foldmark.formats.onnx_external import resolve_external
from foldmark.formats.onnx_file import read_model
from foldmark.formats.onnx_tensor import is_external, tensor_array

VALUES = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
SECRET = np.array([9.0, 9.0, 9.0, 9.0], dtype=np.float32)


def model_with(weight: TensorProto) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y], [weight]),
        opset_imports=[helper.make_opsetid("", 13)],
    )


def external(entries: dict[str, str], dims: tuple[int, ...] = (4,)) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a good data file, a link out of it and a secret outside."""
    folder = tmp_path / "m"
    (folder / "sub").mkdir(parents=True)
    (folder / "ok.bin").write_bytes(VALUES.tobytes())
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    return folder


def write(folder: Path, entries: dict[str, str], dims: tuple[int, ...] = (4,)) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model_with(external(entries, dims)).SerializeToString())
    return path


HOSTILE = {
    "traversal": ({"location": "../secret.bin"}, HostileFile, "climbs out"),
    "nested": ({"location": "sub/../../secret.bin"}, HostileFile, "climbs out"),
    "backslashes": ({"location": "..\\secret.bin"}, HostileFile, "climbs out"),
    "drive": ({"location": "C:\\secret.bin"}, HostileFile, "absolute"),
    "symlink": ({"location": "link.bin"}, HostileFile, "leads out"),
    "negative offset": ({"location": "ok.bin", "offset": "-4"}, HostileFile, "offset"),
    "offset in words": ({"location": "ok.bin", "offset": "four"}, HostileFile, "offset"),
    "huge length": ({"location": "ok.bin", "length": str(10**15)}, HostileFile, "length"),
    "huge offset": ({"location": "ok.bin", "offset": str(2**50)}, TruncatedFile, "ends before"),
    "short length": ({"location": "ok.bin", "length": "8"}, HostileFile, "length"),
    "NUL": ({"location": "ok.bin\0.txt"}, HostileFile, "NUL"),
    "missing": ({"location": "nope.bin"}, FileUnreadable, "missing"),
    "directory": ({"location": "sub"}, FileUnreadable, "a directory"),
    "empty": ({"location": ""}, HostileFile, "empty"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_external_data_stays_in_the_folder(name: str, folder: Path) -> None:
    entries, error, words = HOSTILE[name]
    with pytest.raises(error, match=words) as caught:
        read_model(write(folder, entries))
    assert "\n" not in str(caught.value)
    assert "'w'" in str(caught.value)


def test_an_absolute_location_is_refused(folder: Path) -> None:
    entries = {"location": str(folder / "ok.bin")}
    with pytest.raises(HostileFile, match="absolute"):
        read_model(write(folder, entries))


@pytest.mark.parametrize("location", ["ok.bin", "./ok.bin", "inside.bin"])
def test_honest_external_data_is_loaded(folder: Path, location: str) -> None:
    (folder / "inside.bin").symlink_to(folder / "ok.bin")
    weight = read_model(write(folder, {"location": location})).graph.initializer[0]
    assert not is_external(weight)
    np.testing.assert_array_equal(tensor_array(weight), VALUES)


def test_unknown_keys_are_named_and_ignored(folder: Path) -> None:
    path = write(folder, {"location": "ok.bin", "__class__": "x", "foo": "1"})
    with pytest.warns(UserWarning, match="__class__, foo"):
        weight = read_model(path).graph.initializer[0]
    np.testing.assert_array_equal(tensor_array(weight), VALUES)


def test_a_shape_larger_than_the_file_is_refused_before_allocation(folder: Path) -> None:
    with pytest.raises(TruncatedFile):
        read_model(write(folder, {"location": "ok.bin"}, dims=(2**40, 2**20)))


def test_large_external_tensors_stay_in_their_file(folder: Path) -> None:
    weight = external({"location": "ok.bin"})
    resolve_external([weight], folder, "model", in_memory=15)
    assert is_external(weight)
    mapped = tensor_array(weight)
    np.testing.assert_array_equal(mapped, VALUES)
    assert not mapped.flags.writeable


def test_a_sparse_file_of_three_gigabytes_is_opened_without_reading_it(folder: Path) -> None:
    size = 3 << 30
    with (folder / "big.bin").open("wb") as file:
        file.seek(size - 4)
        file.write(np.float32(7.0).tobytes())
    weight = read_model(write(folder, {"location": "big.bin"}, (size // 4,))).graph.initializer[0]
    assert tensor_array(weight)[-1] == np.float32(7.0)


def test_bytes_have_no_folder_to_look_in(folder: Path) -> None:
    with pytest.raises(HostileFile, match="given by its path"):
        read_model(write(folder, {"location": "ok.bin"}).read_bytes())


def test_negative_dimensions_are_refused() -> None:
    weight = numpy_helper.from_array(VALUES, "w")
    weight.dims[0] = -4
    with pytest.raises(HostileFile, match="negative dimension"):
        read_model(model_with(weight).SerializeToString())


@pytest.mark.parametrize(("rows", "raw"), [(3, True), (5, True), (2**62, True), (5, False)])
def test_data_that_does_not_fit_the_shape_is_refused(rows: int, raw: bool) -> None:
    weight = helper.make_tensor(
        "w", TensorProto.FLOAT, [4], VALUES.tobytes() if raw else VALUES, raw=raw
    )
    weight.dims[0] = rows
    with pytest.raises(HostileFile, match="does not hold"):
        read_model(model_with(weight).SerializeToString())


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.BFLOAT16])
@pytest.mark.parametrize("raw", [True, False])
def test_narrow_types_are_counted_right(kind: int, raw: bool) -> None:
    values = np.array([1, 2, 3]).astype(helper.tensor_dtype_to_np_dtype(kind))
    if raw:
        weight = numpy_helper.from_array(values, "w")
    else:
        weight = helper.make_tensor("w", kind, [3], values)
    weight = read_model(model_with(weight).SerializeToString()).graph.initializer[0]
    np.testing.assert_array_equal(tensor_array(weight).astype(int), [1, 2, 3])


def test_path_bytes_and_proto_are_one(folder: Path) -> None:
    model = model_with(numpy_helper.from_array(VALUES, "w"))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert read_model(model) is model
    assert read_model(path) == read_model(str(path)) == read_model(path.read_bytes()) == model


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", FileUnreadable),
        (b"hello, world", FormatNotRecognised),
        (b"PK\x03\x04" + bytes(60), FormatNotRecognised),
        (b"GGUF\x03\0\0\0" + bytes(60), FormatNotRecognised),
        (b"\x80\x02}q\x00.", FormatNotRecognised),
        (b"\xff" * 40, FormatNotRecognised),
        (b"\x12\x00", FormatNotRecognised),
        (b"\x3a\x04\xff\xff\xff\xff\x42\x02\x10\x0d", FormatNotRecognised),
    ],
)
def test_foreign_bytes_are_not_onnx(content: bytes, error: type, tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        read_model(path)
    assert str(path) in str(caught.value)


def test_every_truncation_is_refused() -> None:
    whole = model_with(numpy_helper.from_array(VALUES, "w")).SerializeToString()
    for length in range(len(whole)):
        with pytest.raises((TruncatedFile, FileUnreadable, FormatNotRecognised)):
            read_model(whole[:length])
    assert read_model(whole)


@pytest.mark.parametrize("place", ["operator", "value", "weight", "inner", "length", "domain"])
def test_a_name_that_is_no_text_is_refused(place: str) -> None:
    """The parser lets it through; whoever reads it later would fail."""
    model = model_with(numpy_helper.from_array(VALUES, "w"))
    node = model.graph.node[0]
    inner = helper.make_graph([helper.make_node("Abs", ["x"], ["marked"])], "b", [], [])
    match place:
        case "operator":
            node.op_type = "marked"
        case "value":
            node.input[0] = "marked"
        case "weight":
            model.graph.initializer[0].name = "marked"
        case "inner":
            node.attribute.append(helper.make_attribute("then_branch", inner))
        case "length":
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "marked"
        case "domain":
            model.opset_import[0].domain = "marked"
    assert read_model(model.SerializeToString())
    with pytest.raises(FormatNotRecognised, match="not UTF-8"):
        read_model(model.SerializeToString().replace(b"marked", b"m\xffrked"))


def test_a_truncated_graph_says_so() -> None:
    whole = model_with(numpy_helper.from_array(VALUES, "w")).SerializeToString()
    with pytest.raises(TruncatedFile, match="cut short"):
        read_model(whole[: len(whole) // 2])


def test_paths_that_hold_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="no such file"):
        read_model(tmp_path / "missing.onnx")
    with pytest.raises(FileUnreadable, match="directory"):
        read_model(tmp_path)
    with pytest.raises(FoldmarkError):
        read_model("a\0b.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(FileUnreadable, match="permission denied"):
        read_model(path)


@pytest.mark.filterwarnings("always::UserWarning")
def test_the_command_line_shows_a_warning_as_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(folder, {"location": "ok.bin", "foo": "1"}))
    assert run(["explain", path, path, "--data", "random:1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("foldmark: warning: ")
    assert lines[0].endswith("unknown keys, ignored: foo")
    assert "foldmark: nothing in the quantized model is quantized" in lines[-1]
