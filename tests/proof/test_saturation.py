"""The count of saturating pairs is exact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.proof import small
from tests.properties import examples

from foldmark.proof.saturation import count_saturated_pairs, saturations
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.onnxruntime import Optimization
from foldmark.runtimes.profile import execute


def by_hand(activations, weights):
    """VPMADDUBSW in plain integers: (pairs cut short, largest error of a sum)."""
    count, worst = 0, 0
    for a in activations.tolist():
        for w in weights.tolist():
            error = 0
            for k in range(0, len(a) - 1, 2):
                pair = a[k] * w[k] + a[k + 1] * w[k + 1]
                kept = min(max(pair, -(2**15)), 2**15 - 1)
                count += kept != pair
                error += kept - pair
            worst = max(worst, abs(error))
    return count, worst


@examples(60)
@given(st.data())
def test_equal_to_plain_integers(data):
    inner = data.draw(st.integers(2, 9))
    extremes = st.sampled_from([0, 1, 127, 128, 129, 254, 255]) | st.integers(0, 255)
    activations = data.draw(arrays(np.uint8, (3, inner), elements=extremes))
    weights = data.draw(arrays(np.uint8, (4, inner), elements=extremes)).view(np.int8)
    assert count_saturated_pairs(activations, weights) == by_hand(activations, weights)


@pytest.mark.parametrize(
    ("pair", "saturates"),
    [((255, 127, 255, 127), 1), ((255, 64, 255, 64), 0), ((255, -128, 129, -1), 1),
     ((255, -128, 128, -1), 0), ((129, 127, 129, 127), 0), ((130, 127, 129, 127), 1)],
)  # fmt: skip
def test_the_edge_of_sixteen_bits(pair, saturates):
    a1, w1, a2, w2 = pair
    count, _ = count_saturated_pairs(np.array([[a1, a2]], np.uint8), np.array([[w1, w2]], np.int8))
    assert count == saturates


def found(built, arrays_):
    execution = execute(built, arrays_, optimization=Optimization.EXTENDED, runs=1)
    return saturations(execution, open_data(arrays_, built), 8)


@pytest.mark.parametrize("size", [1.0, 5.0])
@pytest.mark.parametrize("build", [small.qdq_matmul, small.dynamic_matmul])
def test_products_of_a_model(build, size):
    feeds = {"x": small.samples()["x"] * np.float32(size)}
    (each,) = found(build(), feeds)
    x = feeds["x"]
    if build is small.qdq_matmul:
        q = np.clip(np.rint(x / np.float32(0.03)) + 128, 0, 255).astype(np.uint8)
    else:
        scale = np.float32(x.max() - x.min()) / np.float32(255)
        q = np.clip(np.rint(x / scale) + np.rint(-x.min() / scale), 0, 255).astype(np.uint8)
    assert (each.saturated, each.worst) == by_hand(q, small.codes().T)
    assert each.examined == 8 * small.OUTER * small.INNER // 2


def test_windows_of_a_convolution():
    """Every window of a small image, pairs along (row, column, channel), zero points outside."""
    feeds = {"x": 4 * small.samples(1, (4, 8, 8))["x"]}
    built = small.conv()
    (each,) = found(built, feeds)
    q = np.clip(np.rint(feeds["x"] / np.float32(0.03)) + 128, 0, 255).astype(np.uint8)[0]
    filters = small.numpy_helper.to_array(next(t for t in built.graph.initializer if t.name == "w"))
    q = np.pad(q, [(0, 0), (1, 1), (1, 1)], constant_values=128)
    rows = [
        q[:, i : i + 3, j : j + 3].transpose(1, 2, 0).ravel() for i in range(8) for j in range(8)
    ]
    weights = filters.transpose(0, 2, 3, 1).reshape(8, -1)
    assert (each.saturated, each.worst) == by_hand(np.array(rows), weights)
    assert each.saturated > 0
