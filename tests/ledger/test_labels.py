"""With labels: accuracies and flips are those of ONNX Runtime, margins add up."""

import numpy as np
import onnxruntime
import pytest
from tests.faults.planting import ranges_from_the_wrong_data
from tests.models.digits import held_out

import foldmark


@pytest.fixture(scope="module")
def case():
    fault = ranges_from_the_wrong_data()
    data = held_out(48)
    report = foldmark.explain(fault.float_model, fault.faulty, data)
    return fault, data, report


def scores(model, data):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"image": data["image"]})[0]


def test_accuracies_and_flips_are_the_runtimes(case):
    fault, data, report = case
    exact, near = scores(fault.float_model, data), scores(fault.faulty, data)
    labels = report.labels
    assert labels.samples == 48
    assert labels.accuracy_exact == (exact.argmax(1) == data["labels"]).mean()
    assert labels.accuracy_quantized == (near.argmax(1) == data["labels"]).mean()
    changed = np.flatnonzero(exact.argmax(1) != near.argmax(1))
    assert len(changed) > 3
    assert [flip.sample for flip in labels.flips] == list(changed)
    assert report.metric.name == "cross-entropy"
    assert "Accuracy went from" in report.verdict


def test_flips_name_the_site_that_took_the_margin(case):
    _, _, report = case
    for flip in report.labels.flips[:16]:
        assert flip.margin_exact > 0 > flip.margin_quantized
        lost = flip.margin_exact - flip.margin_quantized
        assert flip.losses[0].site == "image"
        assert -flip.losses[0].amount == pytest.approx(lost, rel=0.2)
