"""Prices at the output, held against models that are built and run one by one."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from foldmark import Difference, diff
from foldmark.cli.main import run
from foldmark.errors import BadInput, NotSupported
from foldmark.exact.catalog import FLOAT16
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import Rule
from foldmark.kernels.fold import quantize_array
from foldmark.rules import ONNXRUNTIME_WEIGHT_INT8

RNG = np.random.default_rng(20271)
WIDTHS = (48, 64, 64, 24)
# Weights of few bits, so that ties occur where a scale is a power of two.
WEIGHTS = [
    (np.round(RNG.normal(0, 0.12, (a, b)) * 512) / 512).astype(np.float32)
    for a, b in pairwise(WIDTHS)
]
for each in WEIGHTS:
    each[0] = 1.0  # in every column: the range that sets the scale
X = RNG.normal(0, 1, (24, WIDTHS[0])).astype(np.float32)


def model(
    weights: list[list[onnx.NodeProto | onnx.TensorProto]], extra: int = 0
) -> onnx.ModelProto:
    """Chain products and Tanh; each weight is given as the nodes and tensors that make w<i>."""
    nodes, tensors, value = [], [], "x"
    for place, parts in enumerate(weights):
        nodes += [part for part in parts if isinstance(part, onnx.NodeProto)]
        tensors += [part for part in parts if isinstance(part, onnx.TensorProto)]
        nodes.append(helper.make_node("MatMul", [value, f"w{place}"], [f"p{place}"]))
        value = "embedding" if place == len(weights) - 1 else f"t{place}"
        kind = "Identity" if value == "embedding" else "Tanh"
        nodes.append(helper.make_node(kind, [f"p{place}"], [value]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTHS[0]])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", WIDTHS[-1]])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def float_model() -> onnx.ModelProto:
    return model([[numpy_helper.from_array(w, f"w{i}")] for i, w in enumerate(WEIGHTS)])


def folded(w: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    group = quantize_array(w, (w.shape[0], 1), rule)
    return group.codes, group.scale.reshape(-1).astype(np.float32)


def quantized_model(rule: Rule) -> onnx.ModelProto:
    parts = []
    for i, w in enumerate(WEIGHTS):
        codes, scale = folded(w, rule)
        parts.append(
            [
                numpy_helper.from_array(codes, f"w{i}_quantized"),
                numpy_helper.from_array(scale, f"w{i}_scale"),
                helper.make_node(
                    "DequantizeLinear", [f"w{i}_quantized", f"w{i}_scale"], [f"w{i}"], axis=1
                ),
            ]
        )
    return model(parts)


OFF = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def output(given: onnx.ModelProto, level: onnxruntime.GraphOptimizationLevel) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(given.SerializeToString(), options)
    return session.run(None, {"x": X})[0].astype(np.float64)


def error(given: onnx.ModelProto, level: onnxruntime.GraphOptimizationLevel = OFF) -> float:
    """Squared distance to the float model's output, relative to that output's squares."""
    ours, theirs = output(given, level), output(float_model(), OFF)
    return float(((ours - theirs) ** 2).sum() / (theirs**2).sum())


def scaled(rule: Rule, **changes: object) -> Rule:
    return replace(rule, scale=replace(rule.scale, **changes))


BASE = scaled(ONNXRUNTIME_WEIGHT_INT8, denominator=Fraction(128))
# name -> decision and how a rule takes it
CHANGES: dict[str, tuple[str, Callable[[Rule], Rule]]] = {
    "away": (
        "rounding",
        lambda rule: replace(rule, affine=replace(rule.affine, rounding=Rounding.HALF_AWAY)),
    ),
    "floor": (
        "rounding",
        lambda rule: replace(rule, affine=replace(rule.affine, rounding=Rounding.FLOOR)),
    ),
    "127": ("divisor", lambda rule: scaled(rule, denominator=Fraction(127))),
    "float16": ("scale stored as", lambda rule: scaled(rule, stored=FLOAT16)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(float_model(), tmp_path / "float.onnx")
    np.savez(tmp_path / "data.npz", x=X)
    return tmp_path


def priced(folder: Path, left: Rule, right: Rule) -> Difference:
    for name, rule in (("a", left), ("b", right)):
        onnx.save(quantized_model(rule), folder / f"{name}.onnx")
    return diff(
        folder / "a.onnx",
        folder / "b.onnx",
        float_model=folder / "float.onnx",
        data=folder / "data.npz",
        metric="mse",
    )


@pytest.mark.parametrize(("one", "two"), [("floor", "127"), ("floor", "float16"), ("away", "127")])
def test_prices_are_those_of_models_built_one_by_one(one: str, two: str, folder: Path) -> None:
    start = (
        scaled(BASE, denominator=Fraction(255, 2))
        if two == "127"
        else scaled(BASE, denominator=Fraction(127))
    )
    steps = dict([CHANGES[one], CHANGES[two]])
    end = start
    for step in steps.values():
        end = step(end)
    found = priced(folder, start, end)
    prices = found.prices
    assert prices is not None
    real = error(quantized_model(start), ALL), error(quantized_model(end), ALL)
    assert (prices.left, prices.right) == pytest.approx(real, rel=1e-3)
    ends = error(quantized_model(start)), error(quantized_model(end))
    by_name = {price.unit.name: price for price in prices.prices}
    assert by_name.keys() <= steps.keys()
    for name, step in steps.items():
        others = [other for key, other in steps.items() if key != name]
        without = start
        for other in others:
            without = other(without)
        into = error(quantized_model(step(start))) - ends[0]
        out = ends[1] - error(quantized_model(without))
        if name not in by_name:  # no tie in these weights: nothing to price
            assert into == pytest.approx(0, abs=1e-9)
            continue
        slack = 1e-3 * max(ends)
        assert by_name[name].into_left == pytest.approx(into, abs=slack)
        assert by_name[name].out_of_right == pytest.approx(out, abs=slack)
        assert by_name[name].measured == pytest.approx((into + out) / 2, abs=slack)
        assert by_name[name].predicted == pytest.approx((into + out) / 2, abs=0.15 * max(ends))


def test_the_prices_and_what_is_left_sum_to_what_was_measured(folder: Path) -> None:
    end = CHANGES["floor"][1](CHANGES["127"][1](CHANGES["float16"][1](BASE)))
    prices = priced(folder, BASE, end).prices
    assert prices is not None
    total = sum(price.measured for price in prices.prices) + prices.together + prices.kernel
    assert total == pytest.approx(prices.difference, rel=1e-9)
    assert abs(prices.together) < 0.1 * abs(prices.difference)


def test_a_decision_that_no_output_shows_is_worth_nothing(folder: Path) -> None:
    start = CHANGES["127"][1](BASE)
    found = priced(folder, start, CHANGES["floor"][1](CHANGES["float16"][1](start)))
    assert found.prices is not None
    shares = {price.unit.name: price.share for price in found.prices.prices}
    assert shares["rounding"] > 0.95
    assert abs(shares["scale stored as"]) < 0.05
    text = str(found)
    assert "is the rounding" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_files_of_weights_are_priced_in_the_float_model(folder: Path) -> None:
    """The same numbers, once inside a model and once as safetensors with other names."""
    left, right = BASE, CHANGES["floor"][1](BASE)
    inside = priced(folder, left, right).prices
    for name, rule in (("a", left), ("b", right)):
        arrays = {}
        for i, w in enumerate(WEIGHTS):
            codes, scale = folded(w, rule)
            arrays[f"layer.{i}.weight"] = np.ascontiguousarray(codes.T)
            arrays[f"layer.{i}.weight_scale"] = scale.reshape(-1, 1)
        save_file(arrays, folder / f"{name}.safetensors")
    outside = diff(
        folder / "a.safetensors",
        folder / "b.safetensors",
        float_model=folder / "float.onnx",
        data=folder / "data.npz",
        metric="mse",
    ).prices
    assert inside is not None
    assert outside is not None
    assert [p.unit.name for p in outside.prices] == ["rounding"]
    assert outside.prices[0].measured == pytest.approx(inside.prices[0].measured, rel=1e-4)
    assert outside.prices[0].share == pytest.approx(1, abs=1e-3)


def activation_model(scales: list[float]) -> onnx.ModelProto:
    """Quantize the two hidden activations to int8 on given scales."""
    given = quantized_model(BASE)
    nodes = list(given.graph.node)
    for place, scale in enumerate(scales):
        value = f"t{place}"
        given.graph.initializer.append(numpy_helper.from_array(np.float32(scale), f"{value}_scale"))
        given.graph.initializer.append(numpy_helper.from_array(np.int8(0), f"{value}_zero"))
        pair = [f"{value}_scale", f"{value}_zero"]
        for node in nodes:
            for k, name in enumerate(node.input):
                if name == value and node.op_type == "MatMul":
                    node.input[k] = f"{value}_back"
        at = next(k for k, node in enumerate(nodes) if value in node.output)
        nodes[at + 1 : at + 1] = [
            helper.make_node("QuantizeLinear", [value, *pair], [f"{value}_codes"]),
            helper.make_node("DequantizeLinear", [f"{value}_codes", *pair], [f"{value}_back"]),
        ]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del given.graph.node[:]
    given.graph.node.extend(copies)
    return given


def test_scales_of_activations_are_priced(folder: Path) -> None:
    left, right = activation_model([1 / 127, 1 / 127]), activation_model([1 / 127, 0.4 / 127])
    for name, each in (("a", left), ("b", right)):
        onnx.save(each, folder / f"{name}.onnx")
    found = diff(
        folder / "a.onnx",
        folder / "b.onnx",
        float_model=folder / "float.onnx",
        data=folder / "data.npz",
        metric="mse",
    )
    prices = found.prices
    assert prices is not None
    difference = error(right) - error(left)
    (price,) = prices.prices
    assert price.unit.name == "activations"
    assert price.measured == pytest.approx(difference, rel=1e-2)
    assert price.predicted == pytest.approx(difference, rel=0.3)
    (activation,) = prices.activations
    assert activation.name == "t1"
    assert activation.left == f"int8, scale {1 / 127:.4g}, zero point 0"


def test_activations_are_swapped_one_by_one(folder: Path) -> None:
    ours, theirs = [1 / 127, 1 / 127], [0.5 / 127, 0.4 / 127]
    left, right = activation_model(ours), activation_model(theirs)
    for name, each in (("a", left), ("b", right)):
        onnx.save(each, folder / f"{name}.onnx")
    found = diff(
        folder / "a.onnx",
        folder / "b.onnx",
        float_model=folder / "float.onnx",
        data=folder / "data.npz",
        metric="mse",
    )
    prices = found.prices
    assert prices is not None
    assert len(prices.activations) == 2
    for place, name in enumerate(("t0", "t1")):
        (activation,) = (each for each in prices.activations if each.name.startswith(name))
        into, back = list(ours), list(theirs)
        into[place], back[place] = theirs[place], ours[place]
        expected = error(activation_model(into)) - error(left)
        expected += error(right) - error(activation_model(back))
        assert activation.measured == pytest.approx(expected / 2, rel=1e-3)
        assert activation.predicted is not None  # a guess where so much is clipped
        assert expected / 4 < activation.predicted < expected * 2
        assert activation.worth == activation.measured
    said = found.text(everything=True)
    assert "activations, alone" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_verdict_tells_kernels_that_part_and_what_works_against(folder: Path) -> None:
    found = priced(folder, BASE, CHANGES["floor"][1](BASE))
    assert found.prices is not None
    (price,) = found.prices.prices

    def said(kernel: float, share: float) -> str:
        """Return the verdict with the kernels' part and the decision's, of a difference of 1."""
        prices = replace(
            found.prices,
            left=0.0,
            right=1.0,
            kernel=kernel,
            prices=(replace(price, share=share),),
        )
        return " ".join(replace(found, prices=prices).verdict.split())

    kernels = "what the real kernels compute otherwise than the graphs say"
    assert said(0.7, 0.3).endswith(f"Of the difference 70 % is {kernels} and 30 % the rounding.")
    assert said(1.3, -0.3).endswith(
        f"Of the difference 130 % is {kernels}; the rounding (-30 %) works against it."
    )
    assert said(1.0, 0.0).endswith(f"100 % is {kernels}; the rounding is worth nothing.")
    assert said(0.0, 1.0).endswith("Of the difference 100 % is the rounding.")


def test_data_needs_a_float_model_that_runs(folder: Path) -> None:
    onnx.save(quantized_model(BASE), folder / "a.onnx")
    with pytest.raises(BadInput, match="need the float model"):
        diff(folder / "a.onnx", folder / "a.onnx", data=folder / "data.npz")
    save_file({f"w{i}": w for i, w in enumerate(WEIGHTS)}, folder / "float.safetensors")
    with pytest.raises(NotSupported, match="float model that runs"):
        diff(
            folder / "a.onnx",
            folder / "a.onnx",
            float_model=folder / "float.safetensors",
            data=folder / "data.npz",
        )


def test_the_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    priced(folder, BASE, CHANGES["floor"][1](BASE))
    names = [str(folder / name) for name in ("a.onnx", "b.onnx", "float.onnx", "data.npz")]
    arguments = ["diff", *names[:2], "--float", names[2], "--data", names[3]]
    assert run(arguments) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("A and B differ in 3 of the 3 weights")
    assert len(lines) <= 30
    assert run([*arguments, "--metric", "mse", "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)["prices"]
    assert document["metric"] == "relative squared error"
    assert [each["decision"] for each in document["decisions"]] == ["rounding"]
    assert run(["diff", names[0], names[1], "--samples", "4"]) == 2
    assert run(["diff", names[0], names[1], "--data", names[3]]) == 2
    assert "--float" in capfd.readouterr().err
