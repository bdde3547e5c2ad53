"""A pair of models with an If is flattened together, and guarded against other paths."""

import numpy as np
import onnx
import pytest
from tests.models.branches import branches, branches_int8, samples

from foldmark.errors import ModelsDiffer, NotSupported
from foldmark.ledger.paths import flatten_pair
from foldmark.runtimes.onnxruntime import Session


def batch(shift: float, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": samples(4, seed)["x"] + np.float32(shift)}


def test_a_pair_goes_one_way_and_stays_on_it() -> None:
    models = [onnx.load(branches()), onnx.load(branches_int8())]
    pair = flatten_pair(*models, batch(1.0))
    for whole, flat in zip(models, (pair.exact, pair.quantized), strict=True):
        assert all(node.op_type != "If" for node in flat.graph.node)
        expected = Session(whole).run(batch(1.0))["logits"]
        np.testing.assert_allclose(Session(flat).run(batch(1.0))["logits"], expected, atol=1e-5)
    pair.check(batch(1.0, seed=1), "samples 4 to 7")
    with pytest.raises(NotSupported) as caught:
        pair.check(batch(-1.0), "samples 8 to 11")
    assert "samples 8 to 11" in str(caught.value)
    assert "then branch" in str(caught.value)


def test_a_flat_pair_is_left_alone() -> None:
    flat = flatten_pair(onnx.load(branches()), onnx.load(branches_int8()), batch(1.0))
    again = flatten_pair(flat.exact, flat.quantized, batch(-1.0))
    assert again.exact is flat.exact
    again.check(batch(-1.0), "anything")


def test_models_that_branch_in_different_places() -> None:
    whole = onnx.load(branches_int8())
    flat = flatten_pair(whole, whole, batch(1.0)).exact
    with pytest.raises(ModelsDiffer, match="branch in different places"):
        flatten_pair(onnx.load(branches()), flat, batch(1.0))
