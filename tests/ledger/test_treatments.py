"""The treatments that are offered for a site, and what each does to its tensor."""

from dataclasses import replace

import numpy as np
import pytest
from tests.faults.planting import one_huge_activation_channel
from tests.ledger.test_facts import collect

import foldmark
from foldmark.graphs.sites import Encoding, Site, SiteKind
from foldmark.ledger.fixes import Fix
from foldmark.ledger.treatments import Treatment, candidates, smoothed

CHANNEL = 5


def site(kind: SiteKind, encoding: Encoding, operator: str = "MatMul") -> Site:
    return Site("s", kind, operator, "", "s", "a", "b", encoding)


def outlying() -> np.ndarray:
    """Return rows of normal values, one channel of which is 40 times as large."""
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    x[:, CHANNEL] *= 40
    return x


def symmetric(x: np.ndarray) -> Encoding:
    scale = np.float32(np.abs(x).max() / 127)
    return Encoding("int8", scale=scale, zero_point=np.int8(0))


def offered(kind: SiteKind) -> dict[str, Treatment]:
    x = outlying()
    encoding = symmetric(x)
    found = candidates(site(kind, encoding), collect(x, encoding, kind), x)
    return {treatment.change: treatment for treatment in found}


def loss(treatment: Treatment, x: np.ndarray) -> float:
    return float(((treatment.apply(x) - x) ** 2).sum())


@pytest.mark.parametrize("kind", [SiteKind.ACTIVATION, SiteKind.WEIGHT])
def test_every_kind_of_treatment_is_offered(kind: SiteKind) -> None:
    wanted = {
        "leave in float",
        "16 bit",
        "per channel (32 scales)",
        "affine on the range seen",
        "clip at 99.9 % of values",
    }
    if kind is SiteKind.WEIGHT:
        wanted.add("per block of 32")
    assert set(offered(kind)) >= wanted


def test_the_range_of_least_squares_loses_less_than_the_whole_range() -> None:
    x = np.random.default_rng(1).standard_normal((400, 64)).astype(np.float32)
    form = Encoding("int4", scale=np.float32(np.abs(x).max() / 7), zero_point=np.int8(0))
    facts = collect(x, symmetric(x))
    found = {each.change: each for each in candidates(site(SiteKind.ACTIVATION, form), facts, x)}
    best, kept = found["clip where squared error is least"], found["clip at 99.9 % of values"]
    whole = loss(found["affine on the range seen"], x)
    assert loss(best, x) < loss(kept, x) < whole
    assert np.abs(kept.apply(x)).max() == pytest.approx(np.quantile(np.abs(x), 0.999), rel=0.1)


def test_finer_treatments_lose_less() -> None:
    x, found = outlying(), offered(SiteKind.WEIGHT)
    assert loss(found["leave in float"], x) == 0
    assert loss(found["16 bit"], x) < 1e-3 * loss(found["affine on the range seen"], x)
    small = np.delete(x, CHANNEL, axis=1)
    error = np.delete(found["per channel (32 scales)"].apply(x), CHANNEL, axis=1) - small
    assert np.abs(error).max() <= np.abs(small).max() / 127 / 2 * 1.001


def test_channel_scales_move_into_the_neighbour() -> None:
    """x / s and s W are folded, with s = sqrt(|x_c| / |w_c|), and multiply to about x W."""
    x = outlying()
    w = np.random.default_rng(2).standard_normal((32, 16)).astype(np.float32)
    activation, weight = (
        site(SiteKind.ACTIVATION, symmetric(x)),
        site(SiteKind.WEIGHT, symmetric(w)),
    )
    facts = collect(x, symmetric(x))
    pair = smoothed(activation, facts, weight, w, axes=(1, 0))
    assert pair is not None
    one, other = pair
    wanted = np.sqrt(np.abs(x).max(0) / np.abs(w).max(1))
    wanted /= np.exp(np.log(wanted).mean())
    np.testing.assert_allclose(one.smoothing, wanted, rtol=1e-5)
    np.testing.assert_allclose(other.smoothing * one.smoothing, 1, rtol=1e-6)
    assert one.change == other.change == "move channel scales into the weight"

    def off(left: np.ndarray, right: np.ndarray) -> float:
        return float(np.linalg.norm(left @ right - x @ w) / np.linalg.norm(x @ w))

    plain = [Treatment("", replace(symmetric(each))).apply(each) for each in (x, w)]
    assert off(one.apply(x), other.apply(w)) < 0.5 * off(*plain)


def test_a_prediction_that_the_measurement_does_not_bear_out_is_said() -> None:
    def fix(predicted: float, measured: float | None) -> Fix:
        return Fix(("s",), "16 bit", predicted, measured, 0.5, 2.0, 4)

    assert not fix(1.0, None).parts
    assert not fix(1.19, 1.0).parts
    assert fix(1.21, 1.0).parts
    assert fix(0.79, 1.0).parts


def test_predicted_stands_beside_measured() -> None:
    fault = one_huge_activation_channel()
    report = foldmark.explain(fault.float_model, fault.faulty, fault.data, metric="mse", samples=16)
    text = str(report).splitlines()
    head = next(
        i for i, line in enumerate(text) if line.split() == ["Cure", "predicted", "measured"]
    )
    worth = [fix for fix in report.fixes if fix.measured is not None or fix.share >= 0.001]
    for row, fix in zip(text[head + 1 :], worth, strict=False):
        assert row.startswith(fix.change)
        assert len(row.split()) >= 3
        figures = row[58:].split()
        assert len(figures) == (1 if fix.measured is None else 2)
    measured = [fix for fix in report.fixes if fix.measured is not None]
    assert any(len(fix.sites) > 1 for fix in measured)
    said = "part by more than 20 %" in " ".join(str(report).split())
    assert said == any(fix.parts for fix in report.fixes)
