"""The rule behind codes: every rule of the catalogue found again, and methods told by residuals."""

from dataclasses import replace

import numpy as np
import pytest

from foldmark.compare.account import open_fields
from foldmark.compare.fit import Fit, fit_tensor
from foldmark.compare.infer import infer_rule
from foldmark.compare.matching import matching_rules
from foldmark.compare.observed import observe
from foldmark.compare.residuals import Suspect
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import Extent, Rule, Scaling, ZeroForm, ZeroOrder
from foldmark.formats.stored import Part, StoredTensor
from foldmark.formats.values import Layout, Values
from foldmark.kernels.fold import quantize_array
from foldmark.rules import CATALOGUE, ONNXRUNTIME_WEIGHT_INT8

RNG = np.random.default_rng(20269)
# Numbers of few bits, as float16 models have them, so that ties occur and decide.
WEIGHTS = np.round(RNG.normal(0, 0.1, (48, 96)) * 1024).astype(np.float32) / 1024
RULES = [name for name, entry in CATALOGUE.items() if isinstance(entry, Rule)]


def values_of(rule: Rule, weights: np.ndarray, block: tuple[int, int]) -> tuple[Values, Layout]:
    """Quantize by a rule and describe the result as a file would."""
    group = quantize_array(weights, block, rule)
    scale = group.scale.astype(np.float32) / np.float32(rule.affine.codes_per_scale)
    stored = "float16" if group.scale.dtype == np.float16 else "float32"
    name = f"{'int' if rule.codes.minimum < 0 else 'uint'}{rule.codes.bits}"
    layout = Layout(name, block, stored)
    if rule.affine.zero_is_real:
        offset = group.zero_point.astype(np.float32) - np.float32(rule.affine.middle) * scale
        return Values(group.codes, block, scale, None, offset), layout
    if rule.zero_point.form is ZeroForm.FIXED:
        return Values(group.codes, block, scale, np.array(rule.zero_point.fixed)), layout
    return Values(group.codes, block, scale, group.zero_point), layout


@pytest.mark.parametrize("name", RULES)
def test_the_catalogue_finds_itself(name: str) -> None:
    rule = CATALOGUE[name]
    assert isinstance(rule, Rule)
    values, layout = values_of(rule, WEIGHTS, (1, 32 if rule.codes.bits < 8 else 96))
    seen = observe(values, layout, WEIGHTS)
    assert name in {match.name for match in matching_rules(seen)}


@pytest.mark.parametrize(
    "name",
    ["ONNXRUNTIME_WEIGHT_INT8", "TORCH_OBSERVER_UINT8", "NNCF_INT4_SYMMETRIC", "GGML_Q4_1"],
)
def test_the_search_explains_every_code(name: str) -> None:
    rule = CATALOGUE[name]
    assert isinstance(rule, Rule)
    values, layout = values_of(rule, WEIGHTS, (1, 32 if rule.codes.bits < 8 else 96))
    found = infer_rule(observe(values, layout, WEIGHTS))
    assert name in found.names
    assert found.scale.is_exact
    assert found.zero_point.is_exact
    assert found.affine.is_exact


def fitted(rule: Rule, weights: np.ndarray = WEIGHTS, codes: np.ndarray | None = None) -> Fit:
    """Quantize rows by a rule, replace the codes if asked to, and fit to the plain weights."""
    values, layout = values_of(rule, weights, (1, 96))
    if codes is not None:
        values = Values(codes, values.block, values.scale, values.zero_point)
    tensor = StoredTensor("w", WEIGHTS.shape, layout, (), {Part.CODES: 1}, lambda a, b: values)
    return fit_tensor(tensor, WEIGHTS)


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.HALF_UP])
def test_ties_tell_the_rounding(rounding: Rounding) -> None:
    # A divisor of 128 and a range of a power of two put scales on the weights' own grid.
    weights = WEIGHTS.copy()
    weights[:, 0] = 1.0
    base = ONNXRUNTIME_WEIGHT_INT8
    rule = replace(
        base,
        scale=replace(base.scale, denominator=128),
        affine=replace(base.affine, rounding=rounding),
    )
    values, layout = values_of(rule, weights, (1, 96))
    found = infer_rule(observe(values, layout, weights))
    assert {option.rounding for option in found.affine.options} == {rounding}
    assert any(key[0] == "rounding" and fails for key, fails in found.decisive.items())


def test_without_ties_rounding_stays_open() -> None:
    weights = RNG.normal(0, 0.1, (48, 96)).astype(np.float32)
    values, layout = values_of(ONNXRUNTIME_WEIGHT_INT8, weights, (1, 96))
    found = infer_rule(observe(values, layout, weights))
    roundings = {option.rounding for option in found.affine.options}
    assert {Rounding.HALF_EVEN, Rounding.HALF_AWAY} <= roundings
    assert all(option.extent is Extent.MAGNITUDE for option in found.scale.options)
    assert {float(option.denominator) for option in found.scale.options} == {127}


def test_the_best_option_names_the_codes_it_misses() -> None:
    values, layout = values_of(ONNXRUNTIME_WEIGHT_INT8, WEIGHTS, (1, 96))
    codes = values.codes.copy()
    codes[3, 4] += 1
    changed = Values(codes, values.block, values.scale, values.zero_point)
    found = infer_rule(observe(changed, layout, WEIGHTS))
    assert not found.is_exact
    assert found.affine.agree == found.affine.total - 1
    assert found.mismatch.tolist() == [3 * 96 + 4]


def test_blocks_without_a_code_do_not_hide_the_rule() -> None:
    """Converters give channels of nearly nothing a scale by other needs."""
    weights = WEIGHTS.copy()
    weights[[3, 9]] *= np.float32(1e-30)
    values, layout = values_of(ONNXRUNTIME_WEIGHT_INT8, weights, (1, 96))
    values.codes[[3, 9]] = 0
    assert values.scale is not None
    values.scale[[3, 9]] = np.float32(1.7e-8)
    found = infer_rule(observe(values, layout, weights))
    assert not found.names
    assert found.dead == 2
    assert "ONNXRUNTIME_WEIGHT_INT8" in found.names_alive
    values.scale[5] *= np.float32(1.01)
    assert not infer_rule(observe(values, layout, weights)).names_alive


def test_ties_are_counted() -> None:
    weights = np.tile(np.float32([1, 1.5 / 128, 2.5 / 128, 3.5 / 128]), (4, 24))
    base = ONNXRUNTIME_WEIGHT_INT8
    rule = replace(base, scale=replace(base.scale, denominator=128))
    fit = fit_tensor(*stored(rule, weights))
    assert not any("no tie" in words for words in open_fields(fit))
    weights = np.tile(np.float32([1, 1.5 / 128, 3.5 / 128, 1.25 / 128]), (4, 24))
    (words,) = [w for w in open_fields(fit_tensor(*stored(rule, weights))) if "ties" in w]
    assert words == "rounding of ties: 192 in this tensor, none of which decides"


def stored(rule: Rule, weights: np.ndarray) -> tuple[StoredTensor, np.ndarray]:
    values, layout = values_of(rule, weights, (1, weights.shape[1]))
    tensor = StoredTensor("w", weights.shape, layout, (), {Part.CODES: 1}, lambda a, b: values)
    return tensor, weights


def test_codes_that_are_rounded_need_no_suspect() -> None:
    assert fitted(ONNXRUNTIME_WEIGHT_INT8).residuals is None


def test_scaled_channels() -> None:
    factors = np.exp(RNG.normal(0, 0.5, 96)).astype(np.float32)
    fit = fitted(ONNXRUNTIME_WEIGHT_INT8, WEIGHTS * factors)
    assert fit.residuals is not None
    assert fit.residuals.suspect is Suspect.SCALED_CHANNELS


def test_rotation() -> None:
    turn = np.linalg.qr(RNG.normal(size=(96, 96)))[0].astype(np.float32)
    fit = fitted(ONNXRUNTIME_WEIGHT_INT8, WEIGHTS @ turn)
    assert fit.residuals is not None
    assert fit.residuals.suspect is Suspect.ROTATION


def test_learned_rounding() -> None:
    values, _ = values_of(ONNXRUNTIME_WEIGHT_INT8, WEIGHTS, (1, 96))
    numbers = values.dequantize()
    other = np.where(numbers < WEIGHTS, 1, -1) * (numbers != WEIGHTS)
    moved = values.codes + other * (RNG.random(WEIGHTS.shape) < 0.1)
    fit = fitted(ONNXRUNTIME_WEIGHT_INT8, codes=np.clip(moved, -127, 127).astype(np.int8))
    assert fit.residuals is not None
    assert fit.residuals.suspect is Suspect.LEARNED_ROUNDING


def test_other_weights() -> None:
    fit = fitted(ONNXRUNTIME_WEIGHT_INT8, RNG.normal(0, 0.1, WEIGHTS.shape).astype(np.float32))
    assert fit.residuals is not None
    assert fit.residuals.suspect is Suspect.OTHER_WEIGHTS


def test_one_row_that_is_off() -> None:
    values, _ = values_of(ONNXRUNTIME_WEIGHT_INT8, WEIGHTS, (1, 96))
    codes = values.codes.copy()
    codes[7] = np.clip(codes[7] - 1, -127, 127)
    fit = fitted(ONNXRUNTIME_WEIGHT_INT8, codes=codes)
    assert fit.residuals is not None
    assert fit.residuals.suspect is Suspect.ONE_PLACE
    assert fit.residuals.place == (0, 7)


def test_weights_whose_last_bits_differ_are_said_to() -> None:
    # as when two conversions each fold a normalization into the same weights
    exact = np.random.default_rng(5).normal(size=(48, 96)).astype(np.float32)  # no ties
    values, layout = values_of(ONNXRUNTIME_WEIGHT_INT8, exact, (1, 96))
    beside = np.where(np.arange(48)[:, None] % 2, np.nextafter(exact, np.float32(9)), exact)
    tensor = StoredTensor("w", exact.shape, layout, (), {Part.CODES: 1}, lambda a, b: values)
    fit = fit_tensor(tensor, beside)
    assert fit.inference is not None
    assert fit.inference.affine.is_exact
    assert fit.shrunk.startswith("absmax / 127 to within ")
    assert "units in the last place" in fit.shrunk
    same = fit_tensor(tensor, exact)
    assert same.shrunk == ""


def test_a_search_of_the_range_is_seen_in_the_scales() -> None:
    shrink = 1 - RNG.integers(1, 20, (48, 1)) / 100
    limit = (np.abs(WEIGHTS).max(1, keepdims=True) * shrink).astype(np.float32)
    scale = limit / np.float32(127)
    codes = np.clip(np.rint(WEIGHTS / scale), -127, 127).astype(np.int8)
    values = Values(codes, (1, 96), scale)
    layout = Layout("int8", (1, 96), "float32")
    tensor = StoredTensor("w", WEIGHTS.shape, layout, (), {Part.CODES: 1}, lambda a, b: values)
    fit = fit_tensor(tensor, WEIGHTS)
    assert "in steps of 0.01" in fit.shrunk
    assert fit.inference is not None
    assert fit.inference.affine.is_exact
    assert {o.scaling for o in fit.inference.affine.options} <= {
        Scaling.DIVIDE,
        Scaling.RECIPROCAL,
    }
    assert ZeroOrder.AFTER_ROUNDING in {o.order for o in fit.inference.affine.options}
