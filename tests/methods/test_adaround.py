"""AdaRound against its definition, every rounding there is, torch's gradient, and its claim."""

from itertools import product

import numpy as np
import pytest

from foldmark.errors import BadInput, NonFiniteValue
from foldmark.methods import adaround as module
from foldmark.methods.adaround import (
    Annealing,
    adaround,
    output_error,
    rectified_sigmoid,
    regularizer,
)
from foldmark.methods.patches import PatchSums, Window, patches


def layer(outer=12, inner=10, tokens=300, seed=0):
    """A weight whose inputs are correlated: there, errors can cancel."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((inner, inner)) + 2 * random.standard_normal((1, inner))
    X = random.standard_normal((tokens, inner)) @ mixing
    return random.standard_normal((outer, inner)), X, 2 * X.T @ X / tokens


def steps_of(W, bits):
    return np.abs(W).max(1, keepdims=True) / ((1 << (bits - 1)) - 1)


def test_the_error_is_the_outputs():
    W, X, H = layer()
    E = np.round(W) - W
    assert output_error(E, H) == pytest.approx(((X @ E.T) ** 2).mean(0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bits", [3, 4])
def test_near_the_best_of_all_roundings(bits, seed):
    """All 2^10 ways to round a row: the search comes near the best, rounding to nearest not."""
    W, _, H = layer(seed=seed)
    s = steps_of(W, bits)
    top = (1 << (bits - 1)) - 1
    found = adaround(W, H, s, (-top - 1, top))
    base = np.floor(W / s)
    ways = np.array(list(product((0, 1), repeat=W.shape[1])))
    best = []
    for row in range(len(W)):
        codes = np.clip(base[row] + ways, -top - 1, top)
        best.append(output_error(codes * s[row] - W[row], H).min())
    mine = output_error(found.codes * s - W, H)
    assert found.error == pytest.approx(mine.sum())
    assert (mine >= np.array(best) * (1 - 1e-9)).all()
    assert mine.sum() < 4 * sum(best)
    assert mine.sum() < 0.6 * found.nearest_error


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_outputs_are_nearer_than_by_rounding(bits, size):
    """The paper's claim, with one scale a row and with blocks and zero points."""
    W, X, H = layer(outer=24, inner=64, tokens=500)
    columns = size or 64
    scale = np.concatenate(
        [
            np.repeat(steps_of(W[:, i : i + columns], bits), columns, 1)
            for i in range(0, 64, columns)
        ],
        axis=1,
    )
    ends = (np.full_like(W, -(1 << (bits - 1))), np.full_like(W, (1 << (bits - 1)) - 1))
    found = adaround(W, H, scale, ends)
    nearest = np.clip(np.rint(W / scale), *ends)
    plain = ((X @ (nearest * scale - W).T) ** 2).mean(0).sum()
    error = ((X @ (found.codes * scale - W).T) ** 2).mean(0).sum()
    assert found.nearest_error == pytest.approx(plain)
    assert found.error == pytest.approx(error)
    assert error < 0.5 * plain
    assert (
        (found.codes == np.floor(W / scale)) | (found.codes == np.ceil(W / scale))
    ).mean() > 0.98
    assert found.codes.min() >= ends[0].min()
    assert found.codes.max() <= ends[1].max()
    assert found.moved == (found.codes != nearest).sum()


def test_a_row_is_never_worse_than_nearest():
    W, _, H = layer(outer=40)
    s = steps_of(W, 4)
    # Too short and too fast to find anything: every row that got worse is put back.
    found = adaround(W, H, s, (-8, 7), Annealing(steps=1, rate=50.0))
    nearest = np.clip(np.rint(W / s), -8, 7)
    rows = output_error(found.codes * s - W, H)
    assert (rows <= output_error(nearest * s - W, H) * (1 + 1e-9)).all()
    assert found.kept > 0


def test_letters():
    V = np.array([-9.0, 0.0, 9.0])
    assert rectified_sigmoid(V) == pytest.approx([0, 0.5, 1])
    assert rectified_sigmoid(np.array([1.0])) == pytest.approx(1.2 / (1 + np.exp(-1)) - 0.1)
    assert regularizer(V, 2.0) == pytest.approx(1.0)
    schedule = Annealing(steps=100)
    assert schedule.beta(0) == pytest.approx(20)
    assert schedule.beta(50) == pytest.approx(11)
    assert schedule.beta(99) == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize(("first", "last"), [(2.0, 2.0), (4.0, 2.5)])
def test_every_step_is_torchs(first, last):
    """V after thirty steps, where autograd differentiates and torch's own Adam walks."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(2)
    W, X = random.standard_normal((6, 8)), random.standard_normal((200, 8))
    H = 2 * X.T @ X / len(X)  # well conditioned: float32 beside torch's float64
    s = np.broadcast_to(steps_of(W, 4), W.shape)
    annealing = Annealing(steps=30, rate=0.02, weight=0.05, first=first, last=last)
    x = W / s
    low, high = np.clip(np.floor(x), -8, 7), np.clip(np.floor(x) + 1, -8, 7)
    mine = module._search(x, s, low, high, H, annealing)

    unit = np.sqrt((s**2 * np.diag(H)).mean(1, keepdims=True))
    start = -np.log(1.2 / (np.clip(x - np.floor(x), 1e-4, 1 - 1e-4) + 0.1) - 1)
    V = torch.tensor(start, requires_grad=True)
    adam = torch.optim.Adam([V], lr=0.02)
    own = torch.tensor((s / unit) ** 2 * np.diag(H))
    floor, width, moment, step = (torch.tensor(a) for a in (low - x, high - low, H, s / unit))
    for each in range(30):
        adam.zero_grad()
        h = torch.clamp(1.2 * torch.sigmoid(V) - 0.1, 0, 1)
        E = (floor + h * width) * step
        loss = ((E @ moment) * E).sum() / 2
        beta = annealing.beta(each)
        loss = loss + 0.05 * (own * (1 - (2 * h - 1).abs() ** beta)).sum()
        loss.backward()
        adam.step()
    theirs = torch.clamp(1.2 * torch.sigmoid(V) - 0.1, 0, 1).detach().numpy()
    assert mine == pytest.approx(theirs, abs=2e-4)


def test_what_does_not_fit_is_refused():
    W, _, H = layer()
    with pytest.raises(BadInput, match="does not fit"):
        adaround(W, H[:3, :3], np.ones(1), (-8, 7))
    H[0, 0] = np.nan
    with pytest.raises(NonFiniteValue, match="H is not finite"):
        adaround(W, H, np.ones(1), (-8, 7))


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
        Window((3, 2), (2, 1), (1, 2), (0, 1, 2, 0), 2),
        Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 4),
        Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 4),
    ],
)
def test_a_convolution_is_its_patches_times_its_weight(window):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    X = random.standard_normal((3, 4, 7, 8)).astype(np.float32)
    W = random.standard_normal((8, 4 // window.groups, *window.kernel)).astype(np.float32)
    top, left, bottom, right = window.pads
    padded = torch.nn.functional.pad(torch.from_numpy(X), (left, right, top, bottom))
    theirs = torch.nn.functional.conv2d(
        padded, torch.from_numpy(W), None, window.strides, 0, window.dilations, window.groups
    ).numpy()
    rows = patches(X, window)
    mine = rows @ W.reshape(window.groups, 8 // window.groups, -1).swapaxes(1, 2)
    places = theirs.shape[2] * theirs.shape[3]
    assert places <= 64
    mine = mine.reshape(window.groups, 3, places, -1).transpose(1, 0, 3, 2)
    assert mine.reshape(theirs.shape) == pytest.approx(theirs, abs=1e-4)


def test_moments_of_patches_stream():
    X = np.random.default_rng(0).standard_normal((6, 4, 12, 12)).astype(np.float32)
    window = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 2)
    sums = PatchSums("x", window)
    for part in (X[:1], X[1:4], X[4:]):
        sums.add(part)
    rows = patches(X, window).astype(np.float64)
    assert rows.shape[1] == 6 * 64
    assert sums.finish() == pytest.approx(
        2 * rows.swapaxes(1, 2) @ rows / rows.shape[1], rel=1e-4, abs=1e-4
    )
