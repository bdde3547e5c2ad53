"""What ONNX Runtime executes of a model whose weights are too many to be handed over in one."""

import numpy as np
import onnx
import pytest
from tests.exact_sums import SEVEN_BITS
from tests.surgery import nets

from foldmark.formats.onnx_file import read_mapped
from foldmark.proof import verify as verifying
from foldmark.proof.kernels import kernels_of
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Recipe
from foldmark.recipes.save import save_model
from foldmark.runtimes.onnxruntime import Session
from foldmark.runtimes.profile import execute


def model():
    """Return it anew: saving moves the weights out of the model that is saved."""
    return nets.matmul(nets.random(64, 64))


FEEDS = nets.samples(model())


@pytest.fixture
def paths(tmp_path):
    """The float model and its static copy, every weight in a file beside."""
    onnx.save(
        model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0
    )
    made = quantize_model(tmp_path / "m.onnx", Recipe(rule=SEVEN_BITS), FEEDS).model
    onnx.save(
        made, tmp_path / "q.onnx", save_as_external_data=True, location="q.bin", size_threshold=0
    )
    return tmp_path / "m.onnx", tmp_path / "q.onnx"


@pytest.mark.parametrize("which", [0, 1])
def test_the_same_kernels_as_of_the_whole_model(paths, which):
    apart, whole = read_mapped(paths[which]), onnx.load(paths[which])
    ran = execute(apart, FEEDS, folder=paths[which].parent)
    expected = execute(whole, FEEDS)
    names = [[node.op_type for node in each.graph.graph.node] for each in (ran, expected)]
    assert names[0] == names[1]
    executors = [[p.executor for p in kernels_of(m, e).products] for m, e in
                 ((apart, ran), (whole, expected))]  # fmt: skip
    assert executors[0] == executors[1]


def test_verify_of_such_models(paths, monkeypatch):
    monkeypatch.setattr(verifying, "read_model", read_mapped)
    proof = verifying.verify(paths[1], paths[0], FEEDS, batch_sizes=[8], seconds=0.01)
    assert proof.size.total < proof.float_size.total
    assert proof.quality.outputs[0].cosine < 1e-3


def test_a_model_with_its_weights_beside_is_written_and_read(tmp_path, monkeypatch):
    made = quantize_model(model(), Recipe(), FEEDS).model
    expected = Session(made).run(FEEDS)["y"]
    monkeypatch.setattr("foldmark.formats.onnx_writer._INLINE", 100)
    save_model(made, tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").stat().st_size < 3000
    assert np.array_equal(Session(tmp_path / "q.onnx").run(FEEDS)["y"], expected)
    again = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(again)
