"""A voice detector with If and LSTM, from the float file to the proof."""

import onnx
import pytest
from tests.models.voice import detector, hits, windows

from foldmark.proof.verify import verify
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe_file import BUILT_IN
from foldmark.recipes.save import save_model


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    path = tmp_path_factory.mktemp("voice") / "vad.onnx"
    made = quantize_model(detector(), BUILT_IN["static"], windows(3, 1))
    save_model(made.model, path)
    return path


def test_the_sound_is_heard_as_what_it_is():
    """The float detector tells synthetic voice from noise; else its score would mean nothing."""
    labels = windows(5)["labels"]
    assert 0.2 < labels.mean() < 0.8


def test_three_claims(quantized):
    proof = verify(
        quantized, detector(), windows(5), score=hits, score_name="hits", seconds=0.1, threads=1
    )
    score = proof.quality.score
    assert score.float_score > 0.85
    assert abs(score.change.value) < 0.1
    assert proof.size.total < proof.float_size.total
    # Its state comes in with every window: a sample is a run of its own.
    assert [speed.samples for speed in proof.speeds] == [1]
    assert proof.kernels.integer_share == 1  # the LSTM too, whose weights the graph computes
    assert sum(line.size for line in proof.size.lines) == proof.size.total


def test_control_flow_is_kept(quantized):
    kinds = {node.op_type for node in onnx.load(quantized).graph.node}
    assert "If" in kinds
