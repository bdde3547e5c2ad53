"""A model whose weights stay in its file says what the whole file says."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from foldmark.errors import FoldmarkError
from foldmark.formats.onnx_file import read_in_place, read_mapped, read_model
from foldmark.formats.onnx_mapped import without_weights
from foldmark.formats.onnx_tensor import (
    external_entries,
    is_external,
    model_tensors,
    tensor_array,
)


def model(typed: str = "") -> onnx.ModelProto:
    draw = np.random.default_rng(0)
    arrays = {
        "w": draw.standard_normal((300, 301)).astype(np.float32),
        "h": draw.standard_normal((40, 1001)).astype(np.float16),
        "b": draw.standard_normal(300).astype(np.float32),
    }
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    if typed:
        kind = getattr(TensorProto, typed)
        stored[0] = helper.make_tensor("w", kind, (300, 301), np.abs(arrays["w"]).ravel() * 9)
        assert not stored[0].HasField("raw_data")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 301])],
        stored,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(made, {"key": "value"})
    return made


# numbers in lists: floats lie there as in raw data, others each in as many bytes as it needs
@pytest.mark.parametrize("typed", ["", "FLOAT", "DOUBLE", "INT32", "INT64", "FLOAT16"])
@pytest.mark.parametrize("shift", range(4))
def test_the_same_model(tmp_path, typed, shift):
    path = tmp_path / "m.onnx"
    made = model(typed)
    made.graph.initializer[0].name += "." * shift
    onnx.save(made, path)
    mapped, whole = read_mapped(path), read_model(path)
    large = [is_external(tensor) for tensor in mapped.graph.initializer]
    in_place = typed in ("", "FLOAT", "DOUBLE")
    assert large == [in_place, True, False]
    assert mapped.ByteSize() < 4000 or not in_place
    for one, other in zip(mapped.graph.initializer, whole.graph.initializer, strict=True):
        assert (one.name, list(one.dims), one.data_type) == (
            other.name,
            list(other.dims),
            other.data_type,
        )
        assert tensor_array(one).tobytes() == tensor_array(other).tobytes()
        assert tensor_array(one).flags.aligned
    for each in (mapped, whole):
        del each.graph.initializer[:]
    assert mapped == whole


def test_a_link_and_odd_names(tmp_path):
    """Through a link, and under names that would be no locations, weights stay in the file too."""
    there = tmp_path / "there" / "m.onnx"
    there.parent.mkdir()
    onnx.save(model(), there)
    (tmp_path / "link.onnx").symlink_to(there)
    (tmp_path / "chain.onnx").symlink_to("link.onnx")
    os.link(there, tmp_path / "a:b.onnx")
    os.link(there, tmp_path / "a\\b.onnx")
    direct = read_mapped(there)
    for name in ("link.onnx", "chain.onnx", "a:b.onnx", "a\\b.onnx"):
        mapped = read_mapped(tmp_path / name)
        for one, other in zip(mapped.graph.initializer, direct.graph.initializer, strict=True):
            assert is_external(one) == is_external(other)
            assert tensor_array(one).tobytes() == tensor_array(other).tobytes()
        location = external_entries(mapped.graph.initializer[0])["location"]
        assert location == str((tmp_path / name).resolve())


@pytest.mark.parametrize("location", ["m.onnx", "../there/m.onnx", "there.data", "{own}"])
def test_a_link_does_not_open_its_targets_folder(tmp_path, location):
    """Data beside a link's target is none of the link's folder; a link to it leads out."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    made = model()
    (there / "there.data").write_bytes(made.graph.initializer[0].raw_data)
    data = made.graph.initializer[0]
    location = location.format(own=there / "m.onnx")
    set_external_data(data, location, offset=0, length=len(data.raw_data))
    data.ClearField("raw_data")
    onnx.save(made, there / "m.onnx")
    (here / "link.onnx").symlink_to(there / "m.onnx")
    for read in (read_model, read_mapped):
        with pytest.raises(FoldmarkError, match=r"missing|climbs|absolute"):
            read(here / "link.onnx")
    (here / "there.data").symlink_to(there / "there.data")
    if location == "there.data":
        for read in (read_model, read_mapped):
            with pytest.raises(FoldmarkError, match="leads out"):
                read(here / "link.onnx")


def test_weights_beside_stay_beside(tmp_path):
    onnx.save(
        model(), tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0
    )
    mapped, whole = read_mapped(tmp_path / "m.onnx"), read_model(tmp_path / "m.onnx")
    for one, other in zip(mapped.graph.initializer, whole.graph.initializer, strict=True):
        assert tensor_array(one).tobytes() == tensor_array(other).tobytes()


def test_every_shortened_file_is_refused_alike(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    cut = tmp_path / "c.onnx"
    for size in (*range(40), *range(100, len(data), 9973), len(data) - 1):
        cut.write_bytes(data[:size])
        said = []
        for read in (read_model, read_mapped):
            with pytest.raises(FoldmarkError) as caught:
                read(cut)
            said.append(str(caught.value))
        assert said[0] == said[1], size


def test_bytes_that_are_no_model_come_back():
    for data in (b"", b"\xff" * 40, b"hello world, this is text", bytes(range(200))):
        assert without_weights(data, "m.onnx") == data


def constants():
    """Return a model with weights in Constant nodes: of the graph, of a branch, of a function."""
    draw = np.random.default_rng(1)

    def constant(name):
        array = draw.standard_normal((130, 140)).astype(np.float32)
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))

    def branch(name):
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        return helper.make_graph([constant(name)], f"{name} branch", [], ends)

    nodes = [
        constant("w"),
        helper.make_node("If", ["b"], ["v"], then_branch=branch("yes"), else_branch=branch("no")),
        helper.make_node("Give", [], ["u"], domain="own"),
        helper.make_node("Sum", ["w", "v", "u"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("b", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [130, 140])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    give = helper.make_function("own", "Give", [], ["g"], [constant("g")], opsets[:1])
    return helper.make_model(graph, opset_imports=opsets, functions=[give], ir_version=9)


def test_constants_stay_in_the_file_for_who_only_looks(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(constants(), path)
    looked, whole = read_in_place(path), read_model(path)
    assert looked.ByteSize() < 3000
    pairs = list(zip(model_tensors(looked), model_tensors(whole), strict=True))
    assert sorted(one.name for one, _ in pairs) == ["g", "no", "w", "yes"]
    for one, other in pairs:
        assert is_external(one)
        assert tensor_array(one).tobytes() == tensor_array(other).tobytes()
        one.CopyFrom(other)
    assert looked == whole
    # runtimes refuse such tensors in a file elsewhere: who runs a model has them inside
    assert not any(is_external(tensor) for tensor in model_tensors(read_mapped(path)))


def test_a_tensor_said_twice_is_left_to_the_parser(tmp_path):
    """Protobuf merges a field that stands twice: the second one's bytes count, here too few."""
    node = constants().graph.node[0]
    again = onnx.AttributeProto(t=TensorProto(raw_data=bytes(8)))
    attribute = node.attribute[0].SerializeToString() + again.SerializeToString()
    del node.attribute[:]
    body = node.SerializeToString() + b"\x2a" + length(len(attribute)) + attribute
    graph = b"\x0a" + length(len(body)) + body
    empty = helper.make_model(onnx.GraphProto(), opset_imports=[helper.make_opsetid("", 17)])
    empty.ClearField("graph")
    path = tmp_path / "m.onnx"
    path.write_bytes(empty.SerializeToString() + b"\x3a" + length(len(graph)) + graph)
    said = []
    for read in (read_model, read_in_place):
        with pytest.raises(FoldmarkError, match="got 8 bytes") as caught:
            read(path)
        said.append(str(caught.value))
    assert said[0] == said[1]


def length(number):
    """Return a number as protobuf writes it: seven bits a byte, the last one without its top."""
    return (
        number.to_bytes(1, "little")
        if number < 128
        else bytes([number & 127 | 128]) + length(number >> 7)
    )
