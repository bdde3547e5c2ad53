"""If, Loop and Scan become the flat graph that the data makes of them."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model
from tests.models.branches import branches, branches_int8, samples

from foldmark.errors import ModelsDiffer, NotSupported
from foldmark.graphs.control_flow import (
    Observe,
    Specialised,
    has_control_flow,
    same_decisions,
    specialise,
)
from foldmark.runtimes.onnxruntime import Session

Feeds = dict[str, np.ndarray]


def observing(feeds: Feeds) -> Observe:
    def observe(model: onnx.ModelProto, names: Sequence[str]) -> Feeds:
        return Session(model, taps=names).run(feeds, names)

    return observe


def flat(model: onnx.ModelProto, feeds: Feeds) -> Specialised:
    """Return the flat graph after checking that it computes the same."""
    specialised = specialise(model, observing(feeds))
    assert not has_control_flow(specialised.model)
    expected = Session(model).run(feeds)
    got = Session(specialised.model, taps=specialised.watched).run(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)
    assert specialised.departure({**feeds, **got}) is None
    return specialised


def departs(specialised: Specialised, feeds: Feeds) -> bool:
    values = Session(specialised.model, taps=specialised.watched).run(feeds)
    return specialised.departure({**feeds, **values}) is not None


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_the_branch_that_the_data_takes(shift: float) -> None:
    feeds = {"x": samples(4)["x"] + np.float32(shift)}
    models = [onnx.load(branches()), onnx.load(branches_int8())]
    specialised = [flat(model, feeds) for model in models]
    same_decisions(*specialised)
    operator = "Relu" if shift > 0 else "Tanh"
    kinds = [node.op_type for node in specialised[0].model.graph.node]
    assert operator in kinds
    other = {"x": samples(4)["x"] - np.float32(shift)}
    assert departs(specialised[0], other)
    assert not departs(specialised[0], feeds)


def test_two_models_on_two_paths_are_refused() -> None:
    ways = [
        specialise(onnx.load(path()), observing({"x": samples(4)["x"] + np.float32(shift)}))
        for path, shift in ((branches, -1.0), (branches_int8, 1.0))
    ]
    with pytest.raises(ModelsDiffer) as caught:
        same_decisions(*ways)
    assert "then" in str(caught.value)
    assert "else" in str(caught.value)


NESTED = """
<ir_version: 8, opset_import: ["" : 17]>
nested (float[n] x, bool outer, bool inner) => (float[n] y) <float[1] two = {2}> {
    y = If (outer) <
        then_branch = yes () => (float[n] a) <float[1] five = {5}> {
            h = Mul (x, five)
            a = If (inner) <
                then_branch = deep () => (float[n] b) { t = Add (h, x)
                                                        b = Mul (t, two) },
                else_branch = flat () => (float[n] b) { t = Sub (h, x)
                                                        b = Identity (t) }
            >
        },
        else_branch = no () => (float[n] a) { h = Neg (x)
                                              a = Identity (h) }
    >
}
"""


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_branches_in_branches(outer: bool, inner: bool) -> None:
    feeds = {
        "x": np.array([1, -2, 3], np.float32),
        "outer": np.array(outer),
        "inner": np.array(inner),
    }
    specialised = flat(parse_model(NESTED), feeds)
    assert [d.choice for d in specialised.decisions] == ([1, int(inner)] if outer else [0])
    assert departs(specialised, {**feeds, "outer": np.array(not outer)})
    assert departs(specialised, {**feeds, "inner": np.array(not inner)}) == outer


LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
looped (float[n] x, int64 limit, float ceiling) => (float[n] y, float[m, n] each)
<float[1] half = {0.5}, bool go = {1}> {
    y, each = Loop (limit, go, x) <
        body = turn (int64 i, bool c, float[n] s) => (bool on, float[n] out, float[n] kept) {
            f = Cast <to = 1> (i)
            moved = Add (s, half)
            out = Add (moved, f)
            kept = Tanh (out)
            most = ReduceMax <keepdims = 0> (out)
            on = Less (most, ceiling)
        }
    >
}
"""


def looped(limit: int, ceiling: float) -> Feeds:
    return {
        "x": np.array([0.1, -0.4, 0.3], np.float32),
        "limit": np.array(limit),
        "ceiling": np.array(ceiling, np.float32),
    }


@pytest.mark.parametrize(
    ("limit", "ceiling", "turns"), [(1, 99, 1), (4, 99, 4), (50, 3.0, 3), (3, 3.0, 3)]
)
def test_a_loop_runs_as_often_as_the_data_says(limit: int, ceiling: float, turns: int) -> None:
    specialised = flat(parse_model(LOOP), looped(limit, ceiling))
    assert [d.choice for d in specialised.decisions] == [turns]
    assert departs(specialised, looped(turns + 1, 99))
    assert departs(specialised, looped(turns - 1, 99))
    assert not departs(specialised, looped(turns, 99))


def test_a_loop_that_does_not_run_gives_its_state() -> None:
    model = parse_model(LOOP)
    del model.graph.output[1]
    model.graph.node[0].output[1] = "unread"
    specialised = flat(model, looped(0, 99))
    assert [d.choice for d in specialised.decisions] == [0]
    with pytest.raises(NotSupported, match="runs no turn"):
        specialise(parse_model(LOOP), observing(looped(0, 99)))


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_is_unrolled(direction: int, axis: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["grown"]),
            helper.make_node("Mul", ["grown", "factor"], ["next"]),
            helper.make_node("Tanh", ["grown"], ["kept"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, [2]),
        ],
    )
    node = helper.make_node(
        "Scan",
        ["start", "xs"],
        ["end", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[direction],
        scan_output_axes=[1 - axis],
        scan_output_directions=[direction],
    )
    shape = ["t", 2] if axis == 0 else [2, "t"]
    graph = helper.make_graph(
        [node],
        "scanned",
        [
            helper.make_tensor_value_info("start", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("xs", TensorProto.FLOAT, shape),
        ],
        [onnx.ValueInfoProto(name="end"), onnx.ValueInfoProto(name="all")],
        [numpy_helper.from_array(np.float32(0.5), "factor")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    draw = np.random.default_rng(2)

    def feeds(turns: int) -> Feeds:
        xs = draw.standard_normal((turns, 2)).astype(np.float32)
        return {"start": np.ones(2, np.float32), "xs": xs if axis == 0 else xs.T.copy()}

    specialised = flat(model, feeds(5))
    assert [d.choice for d in specialised.decisions] == [5]


VAD = find_spec("silero_vad")


@pytest.mark.skipif(VAD is None, reason="the package silero-vad is not installed")
@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_half.onnx"])
def test_a_voice_detector_with_branches_four_deep(name: str) -> None:
    assert VAD is not None
    assert VAD.origin is not None
    model = onnx.load(Path(VAD.origin).parent / "data" / name)
    draw = np.random.default_rng(4)
    feeds = {
        "input": draw.standard_normal((2, 576)).astype(np.float32) / 10,
        "state": np.zeros((2, 2, 128), np.float32),
    }
    if any(value.name == "sr" for value in model.graph.input):
        feeds["sr"] = np.array(16000, np.int64)
    specialised = flat(model, feeds)
    assert any(node.op_type == "LSTM" for node in specialised.model.graph.node)
