"""Rules of the catalogue beside blocks that say little: zero, and scales in a narrow type."""

import numpy as np
import pytest

from foldmark.compare.matching import names_that_give
from foldmark.compare.observed import observe
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import Rule
from foldmark.formats.values import Layout, Values
from foldmark.kernels.fold import quantize_array
from foldmark.rules import CATALOGUE


def test_a_weight_of_zeros_keeps_its_rule() -> None:
    """optimum-quanto divides zero by a scale of zero, and a cast makes code 0 of NaN."""
    zeros = np.zeros((8, 32), np.float32)
    values = Values(zeros.astype(np.int8), (1, 32), np.zeros((8, 1), np.float32))
    layout = Layout("int8", (1, 32), "float32")
    found = names_that_give(observe(values, layout, zeros))
    assert {"QUANTO_INT8", "BITSANDBYTES_INT8", "COREMLTOOLS_INT8_SYMMETRIC"} <= set(found)
    assert "ONNXRUNTIME_WEIGHT_INT8" not in found  # a scale of 1


@pytest.mark.parametrize(
    ("name", "scale_format", "other"),
    [
        ("NNCF_OPENVINO_INT8_SYMMETRIC", "float16", "NNCF_INT8_SYMMETRIC"),
        ("NNCF_INT8_SYMMETRIC", "float32", "NNCF_OPENVINO_INT8_SYMMETRIC"),
    ],
)
def test_the_type_of_the_scales_tells_two_rules_apart(
    name: str, scale_format: str, other: str
) -> None:
    weights = np.random.default_rng(3).normal(0, 0.1, (8, 64)).astype(np.float32)
    rule = CATALOGUE[name]
    assert isinstance(rule, Rule)
    group = quantize_array(weights, (1, 64), rule.for_data(FLOAT32))
    values = Values(group.codes, (1, 64), group.scale.astype(scale_format))
    layout = Layout("int8", (1, 64), scale_format)
    found = names_that_give(observe(values, layout, weights))
    assert name in found
    assert other not in found


def test_only_those_asked_are_named() -> None:
    weights = np.random.default_rng(3).normal(0, 0.1, (8, 64)).astype(np.float32)
    rule = CATALOGUE["QUANTO_INT8"]
    assert isinstance(rule, Rule)
    group = quantize_array(weights, (1, 64), rule.for_data(FLOAT32))
    values = Values(group.codes, (1, 64), group.scale)
    layout = Layout("int8", (1, 64), "float32")
    seen = observe(values, layout, weights)
    assert "SMOOTHQUANT_INT8" in names_that_give(seen)
    assert names_that_give(seen, ("QUANTO_INT8", "GGML_Q4_0")) == ("QUANTO_INT8",)
