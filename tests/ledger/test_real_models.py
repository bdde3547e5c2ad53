"""Real models, every kind of copy: replay, closure, and the largest entries confirmed."""

from pathlib import Path

import numpy as np
import pytest
from tests.models.copies import Copy, quantized
from tests.models.digits import images, residual_network
from tests.models.minilm import SENTENCES, minilm, minilm_tokens, published_int8, tokens

import foldmark
from foldmark.formats.onnx_file import read_model
from foldmark.ledger.models import Models
from foldmark.ledger.targets import Ruler
from foldmark.report.explain import choice_for
from foldmark.runtimes.batches import open_data

ENCODED = tokens(SENTENCES[:8], 16)
FEW = tokens(SENTENCES[:2], 16)


def encoder(copy: Copy) -> Path:
    return quantized(minilm(), copy, tokens(SENTENCES[16:], 32), ("MatMul",))


def reader(copy: Copy) -> Path:
    return quantized(residual_network(), copy, {"image": images()[0][:64]})


CASES = {
    "encoder qdq": (minilm, lambda: encoder(Copy.QDQ), ENCODED),
    "encoder qoperator": (minilm, lambda: encoder(Copy.QOPERATOR), ENCODED),
    "encoder dynamic": (minilm, lambda: encoder(Copy.DYNAMIC), ENCODED),
    "encoder published": (
        minilm_tokens,
        published_int8,
        {**FEW, "token_type_ids": np.zeros_like(FEW["input_ids"])},
    ),
    # The metric moves by 5.5e-7 alone, and the account closes at that scale too.
    "encoder float16": (minilm, lambda: quantized(minilm(), Copy.FLOAT16, {}), FEW),
    "reader per tensor": (
        residual_network,
        lambda: reader(Copy.QDQ),
        {"image": images()[2][:48]},
    ),
    "reader per channel": (
        residual_network,
        lambda: reader(Copy.QDQ_PER_CHANNEL),
        {"image": images()[2][:48]},
    ),
    "reader float16": (
        residual_network,
        lambda: reader(Copy.FLOAT16),
        {"image": images()[2][:48]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_account_closes_and_isolation_confirms_it(case):
    exact, copy, data = CASES[case]
    # One batch is quickest for large weights; several make up for each other's kinks (Relu).
    is_reader = case.startswith("reader")
    metric, size = ("mse", 6) if is_reader else (None, 8)
    report = foldmark.explain(exact(), copy(), data, metric=metric, batch_size=size, cures=False)
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.replay_error <= 1e-5
    assert not report.unmatched
    assert abs(report.closure.graph) <= 1e-5 * abs(report.closure.total)
    confirm_by_isolation(exact(), copy(), data, report)


def confirm_by_isolation(exact, copy, data, report):
    """Switch the three largest sites off in turn, and together; measure what that saves."""
    models = Models(read_model(exact), read_model(copy))
    batch, choice = choice_for(
        models, open_data(data, models.widest), 1 << 20, report.metric.name, report.metric.outputs
    )
    way, real = models.way(batch.feeds), models.run_real(batch.feeds)
    target = Ruler(choice).target(batch, models.run_exact(batch.feeds), real)
    recording = way.record(batch.feeds)
    whole = target.measure(recording.simulated)
    largest = report.entries[:3]

    def saved(names):
        outputs = way.replay.outputs(recording, 1.0, without=names)
        return (whole - target.measure(outputs)) / target.weight

    # Taken from all, a site takes its interactions with the others along; put on the float model
    # alone it has none. The account shares them out: it stands between the two.
    every = [entry.site.name for entry in report.entries]
    for entry in largest:
        name = entry.site.name
        alone = saved(every) - saved([each for each in every if each != name])
        assert (saved([name]) + alone) / 2 == pytest.approx(entry.amount, rel=0.25)
    together = [entry.site.name for entry in largest]
    assert saved(together) == pytest.approx(sum(e.amount for e in largest), rel=0.5)
