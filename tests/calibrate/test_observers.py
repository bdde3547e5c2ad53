"""Ranges against their definition, written out, and against the field's tools on real data."""

import math

import numpy as np
import pytest
from tests.models.digits import images

from foldmark.calibrate.histogram import Histogram
from foldmark.calibrate.observers import Method, Observer, Range, Symmetry, choose_range
from foldmark.calibrate.statistics import Channels, Detail, Statistics
from foldmark.errors import InvalidScheme, NoData, NonFiniteValue

BOTH = list(Symmetry)


def seen(*batches, detail=Detail.HISTOGRAM, constant=0.01):
    found = Statistics(detail, constant)
    for batch in batches:
        found.update(np.asarray(batch, np.float32))
    return found


def heavy_tailed(count=20000, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_t(3, count).astype(np.float32)


def real_activations():
    """What a first layer makes of real images."""
    pixels = images()[0][:300].reshape(300, -1)
    filters = np.random.default_rng(0).standard_t(3, (64, 48)).astype(np.float32)
    return np.maximum(pixels @ filters, -1).ravel()


@pytest.mark.parametrize("symmetry", BOTH)
@pytest.mark.parametrize("method", list(Method))
def test_zero_is_inside_and_mirrored_when_asked(method, symmetry):
    found = choose_range(seen(heavy_tailed() + 5), Observer(method, symmetry))
    assert found.low <= 0 <= found.high
    assert symmetry is Symmetry.AFFINE or found.low == -found.high


def test_min_max():
    batches = [[1, 2, 3], [-4, 0.5], [2.5]]
    assert choose_range(seen(*batches), Observer()) == Range(-4, 3)


def test_moving_average_is_the_formula():
    batches = [[-4, 4], [-2, 8], [-1, 2]]
    low = high = None
    for batch in batches:
        low = min(batch) if low is None else low + 0.25 * (min(batch) - low)
        high = max(batch) if high is None else high + 0.25 * (max(batch) - high)
    found = choose_range(
        seen(*batches, constant=0.25), Observer(Method.MOVING_AVERAGE, constant=0.25)
    )
    assert found == Range(low, high)


def test_moving_average_is_pytorchs():
    from torch import from_numpy
    from torch.ao.quantization.observer import MovingAverageMinMaxObserver

    observer, mine = MovingAverageMinMaxObserver(), Statistics(Detail.ENDS)
    for seed in range(6):
        batch = heavy_tailed(500, seed)
        observer(from_numpy(batch))
        mine.update(batch)
    found = choose_range(mine, Observer(Method.MOVING_AVERAGE))
    assert found.low == pytest.approx(float(observer.min_val), rel=1e-6)
    assert found.high == pytest.approx(float(observer.max_val), rel=1e-6)


@pytest.mark.parametrize("percentile", [90, 99, 99.9, 100])
@pytest.mark.parametrize("symmetry", BOTH)
def test_percentile_is_that_of_the_values(symmetry, percentile):
    values = heavy_tailed()
    statistics = seen(values[:7000], values[7000:])
    found = choose_range(statistics, Observer(Method.PERCENTILE, symmetry, percentile=percentile))
    width = statistics.histogram.width
    if symmetry is Symmetry.SYMMETRIC:
        exact = np.quantile(np.abs(values), percentile / 100, method="inverted_cdf")
        assert exact <= found.high <= exact + width
        return
    rest = (1 - percentile / 100) / 2
    one = 1 / len(values)
    assert (values < found.low).mean() <= rest + 1e-9
    assert (values < found.low + width).mean() >= rest - one
    assert (values > found.high).mean() <= rest + 1e-9
    assert (values > found.high - width).mean() >= rest - one


@pytest.mark.parametrize("percentile", [99.0, 99.9, 99.99])
def test_percentile_is_onnx_runtimes_to_a_bin(percentile):
    from onnxruntime.quantization.calibrate import HistogramCollector

    values = real_activations()
    theirs = HistogramCollector(
        method="percentile", symmetric=True, num_bins=2048, num_quantized_bins=2048,
        percentile=percentile, scenario="same",
    )  # fmt: skip
    theirs.collect({"x": [values]})
    low, high = theirs.compute_collection_result()["x"][:2]
    observer = Observer(Method.PERCENTILE, Symmetry.SYMMETRIC, percentile=percentile)
    statistics = seen(values)
    found = choose_range(statistics, observer)
    bins = float(np.abs(values).max()) / 2048 + statistics.histogram.width
    assert abs(found.high - high) <= bins
    assert low == pytest.approx(max(-high, float(values.min())), abs=bins)


def squared_error(values, chosen, bits=8):
    steps = (1 << bits) - 1
    scale = (chosen.high - chosen.low) / steps
    zero = round(-chosen.low / scale)
    codes = np.clip(np.rint(values.astype(np.float64) / scale) + zero, 0, steps)
    return float(((codes - zero) * scale - values).__pow__(2).mean())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetry", BOTH)
@pytest.mark.parametrize("values", [heavy_tailed(), real_activations()], ids=["tails", "real"])
def test_mse_is_near_the_best_of_all_ranges(values, symmetry, bits):
    """Beside a search that quantizes the values themselves."""
    found = choose_range(seen(values), Observer(Method.MSE, symmetry, bits))
    shrink = np.linspace(0.05, 1, 40)
    if symmetry is Symmetry.SYMMETRIC:
        top = np.abs(values).max()
        ranges = [Range(-top * s, top * s) for s in shrink]
    else:
        ranges = [
            Range(values.min() * a, values.max() * b) for a in shrink[::2] for b in shrink[::2]
        ]
    best = min(squared_error(values, each, bits) for each in ranges)
    assert squared_error(values, found, bits) <= 1.08 * best
    assert squared_error(values, found, bits) <= squared_error(
        values, choose_range(seen(values), Observer(symmetry=symmetry)), bits
    )


@pytest.mark.parametrize("values", [heavy_tailed(), real_activations()], ids=["tails", "real"])
def test_mse_loses_no_more_than_pytorchs_histogram(values):
    from torch import from_numpy
    from torch.ao.quantization.observer import HistogramObserver

    observer = HistogramObserver()
    observer(from_numpy(values))
    scale, zero = (float(each) for each in observer.calculate_qparams())
    theirs = Range(-zero * scale, (255 - zero) * scale)
    mine = choose_range(seen(values), Observer(Method.MSE))
    assert squared_error(values, mine) <= 1.02 * squared_error(values, theirs)


def divergence_by_hand(counts, levels):
    """The least-divergence threshold written out with lists."""
    bins, total = len(counts), sum(counts)
    best = (math.inf, bins)
    for kept in range(bins, levels - 1, -max(1, (bins - levels) // 128)):
        outliers = sum(counts[kept:])
        if outliers == total:
            continue
        reference = [n / total for n in counts[:kept]]
        reference[-1] += outliers / total
        divergence = 0.0
        for level in range(levels):
            part = range(level * kept // levels, (level + 1) * kept // levels)
            filled = [i for i in part if counts[i]]
            mass = sum(counts[i] for i in part) / (total - outliers)
            for i in part:
                if reference[i]:
                    guess = mass / len(filled) if counts[i] else 1e-4 / (total - outliers)
                    divergence += reference[i] * math.log(reference[i] / guess)
        if divergence < best[0] - 1e-12:
            best = (divergence, kept)
    return best[1]


@pytest.mark.parametrize("seed", range(3))
def test_entropy_is_its_definition(seed):
    values = np.abs(heavy_tailed(3000, seed))
    statistics = seen(values)
    found = choose_range(statistics, Observer(Method.ENTROPY, bits=5))
    histogram: Histogram = statistics.histogram
    counts = [0] * histogram.first + histogram.counts.tolist()
    kept = divergence_by_hand(counts, 31)
    assert found == Range(0.0, min(kept * histogram.width, float(values.max())))
    assert found.high <= values.max()


def test_entropy_changes_more_than_nothing():
    """Outliers far out are cut; values that fill their range evenly are not."""
    outliers = np.concatenate([heavy_tailed(), [1000.0]]).astype(np.float32)
    assert choose_range(seen(outliers), Observer(Method.ENTROPY)).high < 500
    even = np.random.default_rng(0).uniform(-1, 1, 40000).astype(np.float32)
    assert choose_range(seen(even), Observer(Method.ENTROPY)).high > 0.98


@pytest.mark.parametrize("method", [Method.MIN_MAX, *list(Method)[2:]])
def test_runs_merge_to_what_one_run_gives(method):
    values = heavy_tailed()
    first, second = seen(values[:5000]), seen(values[5000:9000], values[9000:])
    second.merge(first)
    observer = Observer(method)
    assert choose_range(second, observer) == choose_range(seen(values), observer)


def test_variable_lengths_and_half_precision():
    """Ragged batches, and float16 values whose doubled range does not fit float16."""
    ragged = [np.ones((1, 2, 4)), -np.ones((1, 5, 4)), np.zeros((0, 5, 4))]
    assert choose_range(seen(*ragged), Observer(Method.PERCENTILE)) == Range(-1, 1)
    half = Statistics()
    half.update(np.array([54800, -54800, 1, 2, 3], np.float16))
    found = choose_range(half, Observer(Method.MSE))
    assert abs(found.high) <= 54784
    assert choose_range(half, Observer()) == Range(-54784, 54784)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("symmetry", BOTH)
@pytest.mark.parametrize("method", list(Method))
def test_every_method_by_channel_is_the_method_on_each_channel(method, symmetry, axis):
    batches = [heavy_tailed(720, seed).reshape(6, 10, 12) * (seed + 1) for seed in range(3)]
    observer = Observer(method, symmetry, percentile=99)
    found = Channels(axis)
    for batch in batches:
        found.update(batch)
    parts = [np.moveaxis(batch, axis, 0) for batch in batches]
    assert len(found.each) == len(parts[0])
    for channel, each in enumerate(found.each):
        alone = seen(*(part[channel] for part in parts))
        assert choose_range(each, observer) == choose_range(alone, observer)


def test_channels_that_come_and_go_are_not_kept():
    found = Channels(1)
    found.update(np.ones((2, 3, 4)))
    found.update(np.ones((2, 5, 4)))
    assert (found.varies, found.each) == (True, [])
    flat = Channels(2)
    flat.update(np.ones((2, 3)))
    assert flat.varies


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(value):
    with pytest.raises(NonFiniteValue, match="tensor 'h', batch 3"):
        Statistics().update(np.array([1.0, value, 2.0], np.float32), "h", 3)


def test_nothing_seen():
    with pytest.raises(NoData, match="never seen"):
        choose_range(seen(np.zeros(0)), Observer(), "h")


def test_a_histogram_is_needed():
    with pytest.raises(InvalidScheme, match="needs a histogram"):
        choose_range(seen([1.0], detail=Detail.ENDS), Observer(Method.MSE))


@pytest.mark.parametrize("wrong", [{"bits": 1}, {"percentile": 20}, {"constant": 0}])
def test_numbers_that_make_no_sense(wrong):
    with pytest.raises(InvalidScheme):
        Observer(**wrong)
