"""MiniLM and a residual network, as ONNX Runtime's tools quantize them."""

import time

import onnx
import pytest
from tests.graphs.proof import prove
from tests.models import digits, minilm
from tests.models.copies import Copy, quantized

from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.sites import QuantizedGraph, SiteKind


def prove_minilm(copy: Copy, **expected: bool) -> QuantizedGraph:
    feeds = minilm.tokens(minilm.SENTENCES[:2], 12)
    path = quantized(minilm.minilm(), copy, minilm.tokens(minilm.SENTENCES, 32))
    return prove(onnx.load(path), onnx.load(minilm.minilm()), feeds, **expected)


def prove_digits(copy: Copy, **expected: bool) -> QuantizedGraph:
    path = digits.residual_network()
    images = {"image": digits.images()[0][:64]}
    copied = onnx.load(quantized(path, copy, images))
    return prove(copied, onnx.load(path), {"image": digits.images()[2][:8]}, **expected)


@pytest.mark.parametrize("copy", [Copy.QDQ, Copy.QDQ_PER_CHANNEL])
def test_minilm_qdq(copy: Copy) -> None:
    graph = prove_minilm(copy)
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
    graph = prove_digits(copy)
    assert not graph.unmatched
    assert {s.operator for s in graph.sites if s.kind is SiteKind.BIAS} >= {"Conv"}


def test_minilm_is_read_in_about_a_second() -> None:
    path = quantized(minilm.minilm(), Copy.QDQ, minilm.tokens(minilm.SENTENCES, 32))
    copied, original = onnx.load(path), onnx.load(minilm.minilm())
    began = time.perf_counter()
    read_quantized(copied, original)
    assert time.perf_counter() - began < 5
