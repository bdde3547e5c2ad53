"""Outputs compared, and the task's score with its uncertainty."""

import numpy as np
import pytest
from onnx import numpy_helper
from tests.models.decoder import WIDTH, WORDS, decoder, tokens
from tests.proof import small

from foldmark.errors import DataMismatch, NonFiniteValue
from foldmark.proof.quality import measure_quality
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Session


def pair(noise=0.0, scale=1.0):
    """A linear classifier and a copy with other weights."""
    real = small.float_matmul()
    random = np.random.default_rng(5).standard_normal(small.weight().shape)
    other = (scale * small.weight() + noise * random).astype(np.float32)
    copy = small.model(list(real.graph.node), {"w": other})
    return real, copy


def measured(real, copy, arrays, **options):
    return measure_quality(Session(real), Session(copy), open_data(arrays, real), **options)


def test_distances_are_those_of_all_samples_at_once():
    real, copy = pair(noise=0.1)
    arrays = small.samples(40)
    found = measured(real, copy, arrays, batch_size=7)
    a, b = (Session(m).run(arrays)["y"].astype(np.float64) for m in (real, copy))
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    (each,) = found.outputs
    assert each.relative == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a), rel=1e-5)
    assert each.cosine == pytest.approx((1 - cosine).mean(), rel=1e-4)
    assert each.largest == pytest.approx(np.abs(a - b).max(), rel=1e-5)
    assert found.top1_agreement.value == (a.argmax(1) == b.argmax(1)).mean()
    assert found.score is None


def test_accuracy_and_its_paired_interval():
    real, copy = pair(noise=1.0)
    arrays = small.samples(200)
    labels = Session(real).run(arrays)["y"].argmax(1)
    labels[:20] = (labels[:20] + 1) % small.OUTER
    found = measured(real, copy, arrays | {"labels": labels})
    right = Session(copy).run(arrays)["y"].argmax(1) == labels
    assert found.score.float_score == pytest.approx(0.9)
    assert found.score.quantized_score == pytest.approx(right.mean())
    change = found.score.change
    assert change.low < change.value < change.high < 0


def test_own_score_sees_all_samples():
    real, copy = pair(scale=0.5)

    def spread(outputs, labels):
        assert labels is None
        assert len(outputs["y"]) == 40
        return float(outputs["y"].std())

    found = measured(
        real, copy, small.samples(40), batch_size=16, score=spread, score_name="spread"
    )
    assert found.score.name == "spread"
    assert found.score.quantized_score == pytest.approx(found.score.float_score / 2, rel=1e-4)
    assert found.score.change.high < 0


def test_equal_models_agree():
    real, _ = pair()
    found = measured(real, real, small.samples(30))
    assert found.outputs[0].relative == 0
    assert found.top1_agreement.value == 1
    assert found.top1_agreement.low < 1


def test_a_float_model_with_nan_is_refused():
    real, copy = pair()
    broken = small.model(list(real.graph.node), {"w": np.full((64, 32), np.nan, np.float32)})
    with pytest.raises(NonFiniteValue, match="output 'y'"):
        measured(broken, copy, small.samples(4))


def test_labels_of_tokens_give_an_accuracy_whose_interval_is_over_samples():
    real, data = decoder(), tokens(40)
    copy = decoder()
    head = next(each for each in copy.graph.initializer if each.name == "head")
    noise = np.random.default_rng(3).standard_normal((WIDTH, WORDS)).astype(np.float32)
    head.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(head) + noise, "head"))
    feeds = {name: array for name, array in data.items() if name != "labels"}
    exact, near = (Session(m).run(feeds)["logits"].argmax(2) for m in (real, copy))
    data["labels"] = np.where(np.arange(6) < 4, exact, -100)
    found = measured(real, copy, data, batch_size=9)
    hits = (near == exact)[:, :4].sum(1)
    assert found.score.float_score == 1
    assert found.score.quantized_score == pytest.approx(hits.sum() / 160)
    half = 1.959964 * (hits / 4).std(ddof=1) / 40**0.5
    assert found.score.change.high - found.score.change.value == pytest.approx(half)
    assert found.top1_agreement.value == pytest.approx((near == exact).mean())
    assert found.rows == 6
    assert measured(real, copy, feeds).top1_agreement == found.top1_agreement


@pytest.mark.parametrize("labels", [np.zeros((40, 5), int), np.zeros((40, 2, 3), int)])
def test_labels_that_fit_no_output_are_refused(labels):
    real, copy = pair()
    with pytest.raises(DataMismatch, match="the labels fit no output"):
        measured(real, copy, small.samples(40) | {"labels": labels})
