"""Large tensors made while reading lie in files that go with the graph."""

from pathlib import Path

import numpy as np
import pytest
from tests.graphs.test_large_models import X, networks

from foldmark.formats import onnx_kept
from foldmark.formats.onnx_kept import Kept
from foldmark.formats.onnx_tensor import external_entries, is_external, tensor_array
from foldmark.graphs.reading.read import read_quantized
from foldmark.runtimes.onnxruntime import Optimization, Session


def test_a_large_array_is_the_same_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_kept, "KEPT_BYTES", 100)
    kept = Kept()
    array = np.arange(60, dtype=np.float32).reshape(5, 12)
    small, large, codes = (
        kept.tensor(each, "w") for each in (array[:1], array.T, np.zeros(200, np.int8))
    )
    assert [is_external(each) for each in (small, large, codes)] == [False, True, False]
    np.testing.assert_array_equal(tensor_array(large), array.T)
    place = Path(external_entries(large)["location"])
    assert place.exists()
    del kept
    assert not place.exists()


def test_a_graph_of_large_weights_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models = networks()
    plain = read_quantized(*models)
    monkeypatch.setattr(onnx_kept, "KEPT_BYTES", 100)
    kept = read_quantized(*models)
    for one, other in ((plain.simulated, kept.simulated), (plain.skeleton, kept.skeleton)):
        assert not any(is_external(t) for t in one.graph.initializer)
        assert any(is_external(t) for t in other.graph.initializer)
        left, right = (Session(m, optimization=Optimization.OFF).run(X)["y"] for m in (one, other))
        np.testing.assert_array_equal(left, right)
