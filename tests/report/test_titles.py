"""What a site, an operator and a softmax are called: module path and operator, not a counter."""

import re

import numpy as np
import onnx
import pytest
from tests.faults.planting import EXAMPLE
from tests.models.copies import Copy, quantized
from tests.models.store import built

import foldmark
from foldmark.graphs.sites import Encoding, Site, SiteKind
from foldmark.ledger.kernels import KernelDifference
from foldmark.report.words import operator_title, site_title, site_titles

ACTIVATION, WEIGHT, BIAS = SiteKind.ACTIVATION, SiteKind.WEIGHT, SiteKind.BIAS


def site(name: str, kind: SiteKind, layer: str = "", maker: str = "") -> Site:
    return Site(name, kind, "MatMul", layer, name, name, name, Encoding("int8"), maker=maker)


@pytest.mark.parametrize(
    ("given", "title"),
    [
        (
            ("/encoder/layer.3/dense/MatMul_output_0", ACTIVATION, "", "MatMul"),
            "encoder/layer.3/dense/MatMul",
        ),
        (("val_98", ACTIVATION, "blocks.1", "Add"), "blocks.1/Add (val_98)"),
        (("217_QuantizeLinear", ACTIVATION, "", "Relu"), "Relu (217)"),
        (("logits", ACTIVATION, "classify", "Gemm"), "classify/Gemm (logits)"),
        (("h", ACTIVATION, "", "Relu"), "h"),
        (("pixels", ACTIVATION, "embed", ""), "pixels"),
        (("onnx::MatMul_9772", WEIGHT, "layer.3/fc", ""), "layer.3/fc weight"),
        (("onnx::MatMul_9772", WEIGHT, "", ""), "MatMul weight (onnx::MatMul_9772)"),
        (("val_118", BIAS, "", ""), "MatMul bias (val_118)"),
        (("embeddings", WEIGHT, "", ""), "embeddings"),
    ],
)
def test_titles(given: tuple, title: str) -> None:
    assert site_title(site(*given)) == title


def test_sites_that_would_be_called_alike_are_told_apart() -> None:
    sites = [site("w", WEIGHT, "lstm"), site("r", WEIGHT, "lstm"), site("x", WEIGHT, "fc")]
    assert site_titles(sites) == {"w": "lstm weight (w)", "r": "lstm weight (r)", "x": "fc weight"}


def test_operators() -> None:
    assert operator_title("Softmax", "a/b", "node_Softmax_69") == "a/b/Softmax"
    assert operator_title("Softmax", "a", "/a/b/Softmax_1") == "a/b/Softmax_1"
    assert operator_title("Softmax", "", "softmax_3") == "softmax_3"
    named = KernelDifference("Gemm", "node_Gemm_7", 3, 0.1, "classify")
    assert str(named) == "Gemm 'node_Gemm_7' of classify comes out up to 3 steps off"
    assert "of head" not in str(KernelDifference("Gemm", "/head/Gemm", 3, 0.1, "head"))


def counted() -> onnx.ModelProto:
    """Return the reader of digits, its values and nodes named by counting as exporters do."""
    model = onnx.load(EXAMPLE / "model.onnx")
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    kept |= {tensor.name for tensor in model.graph.initializer}
    new: dict[str, str] = {}
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{node.op_type}_{number}"
        for place, name in enumerate(node.input):
            node.input[place] = new.get(name, name)
        for place, name in enumerate(node.output):
            if name not in kept:
                new[name] = f"val_{len(new)}"
            node.output[place] = new.get(name, name)
    del model.graph.value_info[:]
    return model


def test_a_model_whose_names_are_counters_is_told_in_module_paths() -> None:
    exact = built("counted.onnx", lambda path: onnx.save(counted(), path))
    pixels = np.load(EXAMPLE / "held_out.npz")["pixels"]
    copy = quantized(exact, Copy.QDQ, {"pixels": pixels[:64]})
    report = foldmark.explain(exact, copy, {"pixels": pixels[:8]}, cures=False)
    lines = str(report).splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("Site "))) + 1 :][:12]
    assert re.match(r"blocks\.1/Add \(val_\d+\) ", table[0])
    for row in table:
        assert re.match(r"(blocks\.[01]|embed|norm|classify|pixels|Concat|…)", row), row
    gains = {each.name: each.layer for each in report.softmaxes}
    assert list(gains.values()) == ["blocks.0", "blocks.1"]
    assert "blocks.1/Softmax head" in str(report)
    document = report.to_json()
    assert document["entries"][0]["title"].startswith("blocks.1/Add (val_")
    assert document["softmaxes"][0]["layer"] == "blocks.0"
    assert np.isfinite(document["closure"]["total"])
