"""Graphs in the form that rules read compute what they did."""

import numpy as np
import onnx
import pytest
from tests.graphs.networks import Network, draw

from foldmark.errors import NotSupported
from foldmark.graphs.derivative.facts import element_types
from foldmark.graphs.derivative.prepare import prepare
from foldmark.runtimes.onnxruntime import Session


def grouped(channels: int, before: str) -> onnx.ModelProto:
    """Return a group norm whose scale and bias are stored, behind an operator of a domain."""
    net = Network(21)
    x = net.input("x", ["n", channels, 6])
    if before:
        x = net.node(before, [x], "h", "com.microsoft")
    stored = [net.constant(name, draw(channels, seed=i)) for i, name in enumerate(("a", "b"), 1)]
    net.output(net.node("GroupNormalization", [x, *stored], "y", num_groups=4))
    return net.model("com.microsoft")


@pytest.mark.parametrize("channels", [8, 512])
@pytest.mark.parametrize("before", ["", "QuickGelu"])
def test_bodies_find_the_types_of_what_is_stored(channels: int, before: str) -> None:
    """The inliner sees neither the types of initializers nor those behind other domains."""
    model = grouped(channels, before)
    light = prepare(model)
    assert "GroupNormalization" not in {node.op_type for node in light.model.graph.node}
    feeds = {"x": draw(2, channels, 6)}
    expected, got = (Session(each).run(feeds)["y"] for each in (model, light))
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_what_onnx_can_not_infer_is_said_in_one_line() -> None:
    net = Network(21)
    net.output(net.node("Abs", [net.input("x", ["n"])], "y", "unknown.domain"))
    with pytest.raises(NotSupported, match="can't infer the types"):
        element_types(net.model())
