"""MiniLM and a residual network, as ONNX Runtime's tools quantize them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.graphs.proof import Arithmetic, prove
from tests.models import digits, minilm
from tests.models.copies import Copy, quantized
from tests.models.store import built

from foldmark.graphs.sites import QuantizedGraph, SiteKind


def prove_minilm(copy: Copy, **expected) -> QuantizedGraph:
    feeds = minilm.tokens(minilm.SENTENCES[:2], 12)
    path = quantized(minilm.minilm(), copy, minilm.tokens(minilm.SENTENCES, 32))
    return prove(onnx.load(path), onnx.load(minilm.minilm()), feeds, **expected)


def prove_digits(copy: Copy, **expected) -> QuantizedGraph:
    path = digits.residual_network()
    images = {"image": digits.images()[0][:64]}
    copied = onnx.load(quantized(path, copy, images))
    return prove(copied, onnx.load(path), {"image": digits.images()[2][:8]}, **expected)


@pytest.mark.parametrize("copy", [Copy.QDQ, Copy.QDQ_PER_CHANNEL])
def test_minilm_qdq(copy: Copy) -> None:
    graph = prove_minilm(copy, arithmetic=Arithmetic.SUMMED_OTHERWISE)
    assert not graph.unmatched
    by_kind = {kind: [s for s in graph.sites if s.kind is kind] for kind in SiteKind}
    matrices = [s for s in by_kind[SiteKind.WEIGHT] if s.operator == "MatMul"]
    assert len(matrices) == 36
    axis = 1 if copy is Copy.QDQ_PER_CHANNEL else None
    assert {site.encoding.axis for site in matrices} == {axis}
    assert {s.layer for s in by_kind[SiteKind.KEY]} == {
        f"encoder/layer.{i}/attention/self" for i in range(6)
    }
    assert {s.operator for s in by_kind[SiteKind.KEY] + by_kind[SiteKind.VALUE]} == {"MatMul"}


@pytest.mark.parametrize("copy", [Copy.QDQ, Copy.QDQ_PER_CHANNEL])
def test_residual_network_qdq(copy: Copy) -> None:
    graph = prove_digits(copy, arithmetic=Arithmetic.SUMMED_OTHERWISE)
    assert not graph.unmatched
    assert {s.operator for s in graph.sites if s.kind is SiteKind.BIAS} >= {"Conv"}


def test_minilm_qoperator() -> None:
    graph = prove_minilm(Copy.QOPERATOR, arithmetic=Arithmetic.UNCHECKED)
    assert not graph.unmatched
    assert all("LayerNorm" not in site.name or site.operator for site in graph.sites)
    assert {s.layer for s in graph.sites if s.kind is SiteKind.KEY} == {
        f"encoder/layer.{i}/attention/self" for i in range(6)
    }


def test_residual_network_qoperator() -> None:
    graph = prove_digits(Copy.QOPERATOR, arithmetic=Arithmetic.UNCHECKED)
    assert not graph.unmatched
    assert [s.name for s in graph.sites if s.kind is SiteKind.ACTIVATION] == [
        "image",
        "/Relu_output_0",
        "/block1/Relu_output_0",
        "/block1/second/Conv_output_0",
        "/block1/Relu_1_output_0",
        "/Relu_1_output_0",
        "/block2/Relu_output_0",
        "/block2/second/Conv_output_0",
        "/block2/Relu_1_output_0",
        "/ReduceMean_output_0",
        "logits",
    ]


@pytest.mark.parametrize("proof", [prove_minilm, prove_digits])
def test_dynamic_quantization(proof: Callable[..., QuantizedGraph]) -> None:
    graph = proof(Copy.DYNAMIC, arithmetic=Arithmetic.UNCHECKED)
    assert not graph.unmatched
    moving = [site for site in graph.sites if site.kind is SiteKind.ACTIVATION]
    assert all(site.encoding.is_dynamic for site in moving)
    assert {site.operator for site in moving} <= {"MatMul", "Conv"}
    assert {n.op_type for n in graph.skeleton.graph.node}.isdisjoint(
        {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
    )


@pytest.mark.parametrize("proof", [prove_minilm, prove_digits])
def test_float16(proof: Callable[..., QuantizedGraph]) -> None:
    graph = proof(Copy.FLOAT16, arithmetic=Arithmetic.UNCHECKED)
    assert not graph.unmatched
    assert {site.encoding.number_format for site in graph.sites} == {"float16"}
    assert {site.kind for site in graph.sites} >= {SiteKind.WEIGHT, SiteKind.ACTIVATION}


def test_the_published_int8_minilm_decoded_by_cast_and_mul() -> None:
    feeds = minilm.tokens(minilm.SENTENCES[:2], 12)
    quantized_model = onnx.load(minilm.published_int8())
    names = [value.name for value in quantized_model.graph.input]
    feeds = {name: feeds.get(name, np.zeros_like(feeds["input_ids"])) for name in names}
    graph = prove(
        quantized_model,
        onnx.load(minilm.minilm()),
        feeds,
        arithmetic=Arithmetic.SUMMED_OTHERWISE,
        same_float=False,
    )
    assert len(graph.sites) == 38
    assert {site.kind for site in graph.sites} == {SiteKind.WEIGHT}
    assert not graph.unmatched
    layers = [site.layer for site in graph.sites if site.operator == "MatMul"]
    assert layers[0] == "inner/encoder/layer.0/attention/self/query"


def optimized(path: Path) -> onnx.ModelProto:
    """Return a model as ONNX Runtime's extended optimization leaves it, fused operators and all."""

    def build(target: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(target)
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    return onnx.load(built(f"{path.stem}.optimized.onnx", build))


@pytest.mark.parametrize("copy", [Copy.DYNAMIC, Copy.QDQ])
def test_minilm_optimized_before_it_was_saved(copy: Copy) -> None:
    calibration = minilm.tokens(minilm.SENTENCES, 32)
    model = optimized(quantized(minilm.minilm(), copy, calibration))
    assert any(node.domain == "com.microsoft" for node in model.graph.node)
    feeds = minilm.tokens(minilm.SENTENCES[:2], 12)
    original = onnx.load(minilm.minilm())
    graph = prove(model, original, feeds, arithmetic=Arithmetic.UNCHECKED)
    assert not graph.unmatched
    assert not any(node.domain for node in graph.skeleton.graph.node)


def test_minilm_with_fused_and_quantized_attention() -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    def fuse(path: Path) -> None:
        fused = optimize_model(
            str(minilm.minilm()), "bert", num_heads=12, hidden_size=384, opt_level=0
        )
        fused.save_model_to_file(str(path))

    def build(path: Path) -> None:
        quantize_dynamic(
            built("minilm.fused.onnx", fuse),
            path,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )

    model = onnx.load(built("minilm.fused.dynamic.onnx", build))
    assert sum(node.op_type == "QAttention" for node in model.graph.node) == 6
    feeds = minilm.tokens(minilm.SENTENCES[:2], 12)
    original = onnx.load(minilm.minilm())
    graph = prove(model, original, feeds, arithmetic=Arithmetic.UNCHECKED)
    assert not graph.unmatched
    joined = [site for site in graph.sites if " + " in site.name]
    assert [site.codes.shape for site in joined] == [(384, 1152)] * 6
