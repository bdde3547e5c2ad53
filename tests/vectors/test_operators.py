"""Recorded answers of operators whose tool can't be asked here, by exact and by the fast twin."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foldmark import rules
from foldmark.exact import affine as exact
from foldmark.exact.catalog import FLOAT16, FLOAT32
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import AffineRule, Scaling, ZeroOrder
from foldmark.kernels import affine as fast

ANSWERS = json.loads((Path(__file__).parent / "operators.json").read_text())["answers"]
DATA = {"float16": FLOAT16, "float32": FLOAT32}


def codes_of(answer: dict, rule: AffineRule) -> list[int]:
    values, data = answer["input"], DATA[answer["dtype"]]
    return exact.quantize(values, answer["scale"], answer["zero_point"], rule, data)


def named(name: str) -> list[dict]:
    return [answer for answer in ANSWERS if answer["entry"] == name]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: f"{a['entry']}-{a['scale']:.3g}")
def test_every_answer(answer: dict) -> None:
    rule = rules.CATALOGUE[answer["entry"]].affine
    assert codes_of(answer, rule) == answer["codes"]
    values = np.array(answer["input"], answer["dtype"])
    found = fast.quantize(values, answer["scale"], answer["zero_point"], rule)
    assert found.tolist() == answer["codes"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16", {"precision": FLOAT16}),
        ("ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16", {"rounding": Rounding.HALF_EVEN}),
        ("ONNXRUNTIME_1_29_QUANTIZELINEAR_INT8_FLOAT16", {"rounding": Rounding.FLOOR}),
        ("QUARK_FAKE_UINT4_ASYMMETRIC", {"order": ZeroOrder.BEFORE_ROUNDING}),
        ("QUARK_FAKE_UINT4_ASYMMETRIC", {"scaling": Scaling.DIVIDE}),
        ("QUARK_FAKE_UINT4_ASYMMETRIC", {"rounding": Rounding.HALF_AWAY}),
    ],
    ids=str,
)
def test_wrong_rules_are_told(name: str, wrong: dict) -> None:
    rule = replace(rules.CATALOGUE[name].affine, **wrong)
    assert any(codes_of(answer, rule) != answer["codes"] for answer in named(name))
