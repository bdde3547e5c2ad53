"""The test models do what they are there for."""

import numpy as np
import onnxruntime
import pytest
from tests.models.branches import branches, branches_int8, samples
from tests.models.copies import Copy, quantized
from tests.models.digits import held_out, images, residual_network
from tests.models.minilm import SENTENCES, minilm, published_int8, tokens


def run(path, feeds):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_minilm_finds_sentences_alike():
    pairs = ("A man is eating food.", "A man eats something.", "The girl plays the violin.")
    a, b, c = run(minilm(), tokens(pairs, 16))
    assert a @ b > 0.6
    assert a @ c < 0.3


def test_minilm_published_copy_is_the_same_model():
    feeds = tokens(SENTENCES[:4], 32)
    session = onnxruntime.InferenceSession(published_int8(), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    ids = {**feeds, "token_type_ids": np.zeros_like(feeds["input_ids"])}
    theirs = session.run(None, {k: v for k, v in ids.items() if k in names})[0]
    if theirs.ndim == 3:
        mask = feeds["attention_mask"][:, :, None]
        theirs = (theirs * mask).sum(1)
    theirs = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
    assert (theirs * run(minilm(), feeds)).sum(1).min() > 0.99


@pytest.mark.parametrize("copy", list(Copy))
def test_digits_copies_still_read(copy):
    data = held_out(100)
    calibration = {"image": images()[0][:64]}
    logits = run(quantized(residual_network(), copy, calibration), {"image": data["image"]})
    assert (logits.argmax(1) == data["labels"]).mean() > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_branches(seed):
    feeds = samples(4, seed)
    exact, near = run(branches(), feeds), run(branches_int8(), feeds)
    assert 0 < np.abs(near - exact).max() < 0.2 * np.abs(exact).max()
