"""Labels of tokens: accounts of a decoder that also gives the keys it keeps for its next run."""

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.models.copies import Copy, quantized
from tests.models.decoder import decoder, decoder_file, tokens

import foldmark
from foldmark.errors import DataMismatch
from foldmark.graphs.reading.read import read_quantized
from foldmark.runtimes.onnxruntime import Optimization, Session


def without_labels(data):
    return {name: array for name, array in data.items() if name != "labels"}


@pytest.fixture(scope="module")
def copy():
    return quantized(decoder_file(), Copy.QDQ, without_labels(tokens(16)), ("MatMul",))


def logits(path, data):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["logits"], without_labels(data))[0]


@pytest.mark.parametrize("past", [0, 3])
def test_labels_of_tokens_choose_the_logits_and_are_counted_one_by_one(copy, past):
    data = tokens(12, past=past)
    report = foldmark.explain(decoder(), copy, data)
    assert report.metric.name == "cross-entropy"
    assert report.metric.outputs == ("logits",)
    assert "another output is left out" in report.metric.reason
    assert abs(report.closure.relative_error) <= 1e-4
    exact, near = logits(decoder_file(), data), logits(copy, data)
    surprise = [
        np.log(np.exp(each.astype(float)).sum(2))
        - np.take_along_axis(each, data["labels"][:, :, None], 2)[:, :, 0]
        for each in (exact, near)
    ]
    assert report.metric.exact == pytest.approx(surprise[0].mean(), rel=1e-6)
    assert report.metric.quantized == pytest.approx(surprise[1].mean(), rel=1e-6)
    assert report.labels.samples == 72
    assert report.labels.accuracy_quantized == (near.argmax(2) == data["labels"]).mean()
    changed = np.argwhere(exact.argmax(2) != near.argmax(2))
    assert len(changed) > 1
    assert [(flip.sample, flip.row) for flip in report.labels.flips] == [*map(tuple, changed)]


def test_what_took_the_margin_of_a_flipped_token_covers_what_was_lost(copy):
    data = tokens(12)
    report = foldmark.explain(decoder(), copy, data)
    # Where kernels saturate they take some of the margin too, which is no site's.
    simulated = read_quantized(onnx.load(copy), decoder()).simulated
    near = Session(simulated, optimization=Optimization.OFF).run(without_labels(data))["logits"]
    for flip in report.labels.flips:
        row = near[flip.sample, flip.row]
        lost = flip.margin_exact - float(row[flip.exact] - row[flip.quantized])
        # The few sites that took some are all listed; others gave some back.
        assert sum(-loss.amount for loss in flip.losses) >= 0.99 * lost
    first = report.labels.flips[0]
    assert f"sample {first.sample}, row {first.row} " in str(report)


def test_unknown_tokens_count_for_nothing(copy):
    data = tokens(12)
    data["labels"][:, 2:] = -100
    report = foldmark.explain(decoder(), copy, data)
    assert report.labels.samples == 24
    assert {flip.row for flip in report.labels.flips} <= {0, 1}


def test_without_labels_what_a_decoder_keeps_is_left_out(copy):
    report = foldmark.explain(decoder(), copy, without_labels(tokens(4)))
    assert report.metric.outputs == ("logits",)
    assert report.metric.name == "kl"
    both = foldmark.explain(
        decoder(), copy, tokens(4), outputs=["logits", "present.0.key"], metric="mse"
    )
    assert both.metric.outputs == ("logits", "present.0.key")


def test_labels_that_fit_no_output_are_refused(copy):
    data = tokens(4)
    data["labels"] = data["labels"][:, :5]
    with pytest.raises(DataMismatch, match="5 a sample; expected 1 or 6"):
        foldmark.explain(decoder(), copy, data, outputs=["logits"])
