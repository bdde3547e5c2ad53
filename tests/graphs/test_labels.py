"""Module paths come back from the names that exporters leave."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.graphs.networks import Network, draw

from foldmark.graphs.labels import Labels, common_path, module_path
from foldmark.graphs.reading.read import read_quantized


@pytest.mark.parametrize(
    ("parameter", "path"),
    [
        ("encoder.layer.3.output.dense.weight", "encoder/layer.3/output/dense"),
        ("encoder.layer.3.output.dense.bias_quantized", "encoder/layer.3/output/dense"),
        ("model/dense/kernel:0", ""),
        ("bert/encoder/layer_0/dense/kernel", "bert/encoder/layer_0/dense"),
        ("features.0.0.weight", "features.0.0"),
        ("h.11.attn.c_attn.weight_transposed", "h.11/attn/c_attn"),
        ("onnx::MatMul_9772", ""),
        ("val_98", ""),
        ("weight", ""),
    ],
)
def test_a_parameter_names_its_module(parameter: str, path: str) -> None:
    assert module_path(parameter) == path


def labels(*nodes: onnx.NodeProto, constants: tuple[str, ...] = ()) -> Labels:
    return Labels(nodes, constants)


@pytest.mark.parametrize(
    ("operator", "name", "path"),
    [
        (
            "MatMul",
            "/encoder/layer.0/attention/self/query/MatMul",
            "encoder/layer.0/attention/self/query",
        ),
        ("Add", "/block1/Add_1", "block1"),
        ("QLinearConv", "/stem/Conv_quant", "stem"),
        ("MatMulInteger", "/head/MatMul_quant", "head"),
        ("MatMul", "MatMul_17", ""),
        ("MatMul", "node_MatMul_98", ""),
    ],
)
def test_a_node_name_holds_its_path(operator: str, name: str, path: str) -> None:
    node = helper.make_node(operator, ["a", "b"], ["c"], name=name)
    assert labels(node).of(node) == path


def test_scopes_in_the_metadata_are_read() -> None:
    node = helper.make_node("MatMul", ["x", "val_98"], ["linear_3"], name="node_MatMul_98")
    entry = node.metadata_props.add()
    entry.key, entry.value = (
        "pkg.torch.onnx.name_scopes",
        "['', 'encoder', 'encoder.layer.0', 'encoder.layer.0.output.dense', 'linear_3']",
    )
    assert labels(node).of(node) == "encoder/layer.0/output/dense"


@pytest.mark.parametrize("value", ["__import__('os')", "[", "3", ""])
def test_metadata_that_is_no_list_is_ignored(value: str) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    entry = node.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", value
    assert labels(node).of(node) == ""


def test_the_bias_that_is_added_names_the_layer() -> None:
    product = helper.make_node("MatMul", ["x", "onnx::MatMul_9772"], ["p"], name="MatMul_4")
    shifted = helper.make_node("Add", ["p", "layer.2.fc.bias"], ["s"], name="Add_5")
    found = labels(product, shifted, constants=("onnx::MatMul_9772", "layer.2.fc.bias"))
    assert found.of(product) == "layer.2/fc"


def test_what_has_no_name_is_put_to_the_layer_before() -> None:
    product = helper.make_node("MatMul", ["x", "fc.weight"], ["p"], name="MatMul_4")
    nodes = [product]
    for i, operator in enumerate(("Erf", "Exp", "Neg")):
        nodes.append(helper.make_node(operator, [nodes[-1].output[0]], [f"v{i}"]))
    assert labels(*nodes, constants=("fc.weight",)).near("v1") == "fc"


@pytest.mark.parametrize(
    ("paths", "shared"),
    [
        (["a/b/q", "a/b/k"], "a/b"),
        (["a/b", "a/b"], "a/b"),
        (["a", "b"], ""),
        (["layer.1/x", "layer.10/x"], ""),
        ([], ""),
    ],
)
def test_the_path_that_several_share(paths: list[str], shared: str) -> None:
    assert common_path(paths) == shared


def test_a_renamed_weight_is_labelled_by_the_float_graph() -> None:
    w = draw(6, 4)
    net, plain = Network(), Network()
    for each in (net, plain):
        each.input("x", ["n", 6])
        each.output("y")
    step = np.float32(np.abs(w).max() / 127)
    stored = net.stored("val_7", np.rint(w / step).astype(np.int8), step)
    net.nodes.append(helper.make_node("MatMul", ["x", stored], ["y"], name="n_3"))
    plain.constant("onnx::MatMul_12", w)
    name = "/decoder/out_proj/MatMul"
    plain.nodes.append(helper.make_node("MatMul", ["x", "onnx::MatMul_12"], ["y"], name=name))
    (site,) = read_quantized(net.model(), plain.model()).sites
    assert (site.name, site.layer) == ("onnx::MatMul_12", "decoder/out_proj")
