"""Sessions: taps, weights kept apart, and every refusal a line that names the place."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from foldmark.errors import (
    DataMismatch,
    FileUnreadable,
    FormatNotRecognised,
    NotSupported,
    OperatorNotSupported,
)
from foldmark.graphs.light import lighten
from foldmark.runtimes.onnxruntime import Optimization, Session

WEIGHT = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)


def two_layers(operator: str = "Relu", axis_length: int | str = "n") -> onnx.ModelProto:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["h"], name="first"),
            helper.make_node(operator, ["h"], ["y"], name="second"),
        ],
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [axis_length, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [axis_length, 64])],
        initializer=[onnx.numpy_helper.from_array(WEIGHT, "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)


@pytest.mark.parametrize("optimization", Optimization)
@pytest.mark.parametrize("kind", ["proto", "light", "path"])
def test_taps_are_returned_beside_the_outputs(
    kind: str, optimization: Optimization, tmp_path: Path
) -> None:
    model = two_layers()
    onnx.save(model, tmp_path / "m.onnx")
    source = {"proto": model, "light": lighten(model), "path": tmp_path / "m.onnx"}[kind]
    got = Session(source, taps=["h"], optimization=optimization).run({"x": X})
    assert set(got) == {"y", "h"}
    np.testing.assert_allclose(got["h"], X @ WEIGHT, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got["y"], np.maximum(got["h"], 0))


def test_lightening_moves_weights_and_leaves_the_model_alone() -> None:
    model = two_layers()
    before = model.SerializeToString()
    light = lighten(model)
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(light.weights["W"], WEIGHT)
    assert len(light.model.SerializeToString()) < WEIGHT.nbytes / 2


def test_external_data_is_found_beside_the_file_when_tapped(tmp_path: Path) -> None:
    onnx.save(
        two_layers(),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    got = Session(tmp_path / "m.onnx", taps=["h"]).run({"x": X})
    np.testing.assert_allclose(got["h"], X @ WEIGHT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, ["'x'", "missing"]),
        ({"x": X, "z": X}, ["'z'", "no such input"]),
        ({"x": X.astype(np.float64)}, ["'x'", "float64", "float32"]),
        ({"x": X[0]}, ["'x'", "(8,)", "(any, 8)"]),
        ({"x": X[:, :5]}, ["'x'", "(3, 5)", "(any, 8)"]),
    ],
)
def test_a_wrong_feed_is_named(feeds: dict[str, np.ndarray], words: list[str]) -> None:
    with pytest.raises(DataMismatch) as caught:
        Session(two_layers()).run(feeds)
    assert all(word in str(caught.value) for word in words)


def test_a_missing_operator_is_named_with_its_node() -> None:
    with pytest.raises(OperatorNotSupported) as caught:
        Session(two_layers("NotAnOperator"))
    assert "NotAnOperator" in str(caught.value)
    assert "'second'" in str(caught.value)


def test_a_missing_kernel_is_named_with_its_node() -> None:
    model = two_layers("Tan")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    weight = onnx.numpy_helper.from_array(WEIGHT.astype(np.float64), "W")
    model.graph.initializer[0].CopyFrom(weight)
    with pytest.raises(OperatorNotSupported) as caught:
        Session(model)
    assert "Tan(7)" in str(caught.value)
    assert "'second'" in str(caught.value)


def test_a_kernel_that_fails_is_named() -> None:
    model = two_layers()
    model.graph.node[1].CopyFrom(helper.make_node("Reshape", ["h", "k"], ["y"], name="second"))
    model.graph.input.append(helper.make_tensor_value_info("k", TensorProto.INT64, [2]))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "a"
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "b"
    with pytest.raises(NotSupported) as caught:
        Session(model).run({"x": X, "k": np.array([5, 5])})
    assert "'second'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable):
        Session(tmp_path / "absent.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"this is not a model at all")
    for taps in ((), ("h",)):
        with pytest.raises(FormatNotRecognised):
            Session(tmp_path / "bad.onnx", taps=taps)


def test_threads_are_stated() -> None:
    session = Session(two_layers(), threads=1)
    assert session._session.get_session_options().intra_op_num_threads == 1


def test_results_outlive_the_session_and_later_runs() -> None:
    session = Session(two_layers())
    first = session.run({"x": X})["y"]
    kept = first.copy()
    session.run({"x": -X})
    del session
    np.testing.assert_array_equal(first, kept)


def test_a_weight_that_nothing_reads_is_no_obstacle() -> None:
    model = two_layers()
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "unread"))
    assert set(lighten(model).weights) == {"W", "unread"}
    np.testing.assert_array_equal(
        Session(model).run({"x": X})["y"], Session(two_layers()).run({"x": X})["y"]
    )


@pytest.mark.parametrize(
    "scale", [np.float32(2), np.array(2, np.float32)], ids=["scalar", "rank 0"]
)
def test_scalars_are_fed_as_they_are(scale: np.ndarray) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", ["x", "scale"], ["y"])],
        "scaled",
        [
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3]),
            onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, []),
        ],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    session = Session(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9))
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2).T, "scale": scale}
    assert np.array_equal(session.run(feeds)["y"], feeds["x"] * 2)
    result = np.zeros((2, 3), np.float32)
    session.run_into(feeds, {"y": result})
    assert np.array_equal(result, feeds["x"] * 2)


def dangling() -> onnx.ModelProto:
    model = two_layers()
    model.graph.node[1].input[0] = "ghost"
    return model


def of_no_node() -> onnx.ModelProto:
    model = two_layers()
    del model.graph.node[:]
    return model


def of_the_future() -> onnx.ModelProto:
    model = two_layers()
    model.ir_version = 99
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (dangling, "Node input 'ghost' is not a graph input"),
        (of_no_node, "Graph output (y) does not exist in the graph."),
        (of_the_future, "Unsupported model IR version: 99"),
    ],
)
def test_a_refusal_names_the_model_and_not_the_place_in_the_runtimes_source(make, said) -> None:
    with pytest.raises(NotSupported) as caught:
        Session(make(), title="the float model")
    told = caught.value.sentence()
    assert told.startswith("the float model: ONNX Runtime refuses: ")
    assert said in told
    assert "onnxruntime_src" not in told
    assert "::" not in told


@pytest.mark.parametrize("name", ["look up", ""])
def test_a_kernel_that_fails_is_named_with_or_without_a_name(name: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["W", "i"], ["y"], name=name)],
        "table",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        initializer=[onnx.numpy_helper.from_array(WEIGHT, "W")],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    with pytest.raises(NotSupported, match=r"Gather failed in ONNX Runtime: .*idx=30") as caught:
        Session(model, title="the float model").run({"i": np.array([30])})
    where = f"node {name!r}" if name else "a node without name of the float model"
    assert caught.value.where == where
