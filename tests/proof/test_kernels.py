"""Each multiply-accumulate is assigned to what executed it."""

import numpy as np
import pytest
from tests.proof import small

from foldmark.proof.kernels import Executor, kernels_of
from foldmark.proof.unfused import unfused_pairs
from foldmark.runtimes.profile import execute

MACS = 8 * small.INNER * small.OUTER


def kernels(built, feeds=None):
    return kernels_of(built, execute(built, feeds or small.samples(), threads=1, runs=2))


@pytest.mark.parametrize(
    ("build", "executor"),
    [
        (small.float_matmul, Executor.FLOAT),
        (small.dynamic_matmul, Executor.INTEGER),
        (small.cast_decoded_matmul, Executor.FLOAT_DECODED),
        (lambda: small.weight_only_matmul(np.int16), Executor.FLOAT_DEQUANTIZED),
        (small.weight_only_matmul, Executor.INTEGER),
        (small.qdq_matmul, Executor.INTEGER),
    ],
)
def test_who_multiplied(build, executor):
    found = kernels(build())
    assert [each.executor for each in found.shares] == [executor]
    assert found.weight_macs == MACS
    assert found.integer_share == (executor is Executor.INTEGER)


def test_two_activations_are_told_from_weights():
    nodes = [
        small.helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        small.helper.make_node("Transpose", ["h"], ["t"], "turn"),
        small.helper.make_node("MatMul", ["h", "t"], ["y"], "second"),
    ]
    found = kernels(small.model(nodes, {"w": small.weight()}))
    assert {p.executor: p.macs for p in found.products} == {
        Executor.FLOAT: MACS,
        Executor.FLOAT_ACTIVATIONS: 8 * 8 * small.OUTER,
    }


@pytest.mark.parametrize("quantized", [True, False])
def test_convolution_macs(quantized):
    found = kernels(small.conv(quantized), small.samples(2, (4, 8, 8)))
    assert found.weight_macs == 2 * 8 * 8 * 8 * 4 * 9
    assert found.integer_share == quantized


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: small.qdq_matmul(np.int8, np.uint8), "one type for both"),
        (lambda: small.qdq_matmul(np.int8, np.int8, np.uint8), "int8 activation with uint8"),
        (lambda: small.qdq_matmul(np.int16, np.int16), "16-bit codes"),
        (lambda: small.weight_only_matmul(np.int16), "not quantized, only the weight"),
        (lambda: small.conv(output_pair=False), "an output of the model, in float"),
    ],
)
def test_why_a_pair_stays_in_float(build, reason):
    (found,) = unfused_pairs(build())
    assert reason in found.reason
    assert found.count == 1


def test_blocks_of_weights_read_a_dequantized_activation():
    found = kernels(small.qdq_matmul(np.int16, np.int16, opset=21))
    assert found.integer_share == 1
    assert "quantized anew" in found.unfused[0].reason


def test_a_convolution_needs_the_pair_after_it():
    found = kernels(small.conv(output_pair=False), small.samples(2, (4, 8, 8)))
    assert found.integer_share == 0
    assert "an output of the model, in float" in found.unfused[0].reason


def test_fused_pairs_are_not_reported():
    assert kernels(small.qdq_matmul()).unfused == ()


def test_lost_fusion_is_named():
    """A Gelu whose inner values are quantized is no Gelu any more."""
    helper = small.helper
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}

    def gelu(source):
        return [
            helper.make_node("Div", [source, "root"], ["a"], "a"),
            helper.make_node("Erf", ["a"], ["b"], "b"),
            helper.make_node("Add", ["b", "one"], ["c"], "c"),
            helper.make_node("Mul", [source, "c"], ["d"], "d"),
            helper.make_node("Mul", ["d", "half"], ["y"], "e"),
        ]

    real = small.model(gelu("x"), constants)
    broken = gelu("x")
    broken[1] = helper.make_node("Erf", ["a2"], ["b"], "b")
    broken[1:1] = [
        helper.make_node("QuantizeLinear", ["a", "s"], ["a1"], "q"),
        helper.make_node("DequantizeLinear", ["a1", "s"], ["a2"], "dq"),
    ]
    made = small.model(broken, constants | {"s": np.float32(0.02)})
    feeds = small.samples()
    lost = kernels_of(made, execute(made, feeds), execute(real, feeds)).lost
    assert [(each.operator, each.in_float, each.in_quantized) for each in lost] == [("Gelu", 1, 0)]


@pytest.mark.parametrize("apart", [False, True])
def test_a_lost_skip_and_normalization_are_named(apart):
    """A residual whose sum is quantized is no longer added inside the normalization."""
    helper = small.helper
    draw = np.random.default_rng(0)
    values = draw.standard_normal((2, small.INNER)).astype(np.float32)
    constants = dict(zip("gb", values, strict=True))
    shape = (2, 4, small.INNER)
    norm = helper.make_node("LayerNormalization", ["sum", "g", "b"], ["y"], "norm", axis=-1)
    twice = helper.make_node("Relu", ["x"], ["skip"], "skip")
    real = small.model([twice, helper.make_node("Add", ["x", "skip"], ["sum"], "add"), norm],
                       constants, 3, shape)  # fmt: skip
    pair = [
        helper.make_node("QuantizeLinear", ["whole", "s"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["sum"], "dq"),
    ]
    added = helper.make_node("Add", ["x", "skip"], ["whole" if apart else "sum"], "add")
    made = small.model([twice, added, *(pair if apart else []), norm],
                       constants | {"s": np.float32(0.05)}, 3, shape)  # fmt: skip
    feeds = {"x": draw.standard_normal(shape).astype(np.float32)}
    lost = kernels_of(made, execute(made, feeds), execute(real, feeds)).lost
    assert [each.operator for each in lost] == ["SkipLayerNormalization"] * apart


def on_codes(operator, activations, weights):
    """A product on codes, its result dequantized; a ConvInteger's is cast."""
    helper = small.helper
    kinds = {"activations": activations, "weights": weights}
    stored = {f"{name} zero": kind(0) for name, kind in kinds.items()}
    stored |= {"scale": np.float32(0.05), "wide": np.float32(0.5)}
    shape = (8, 4, 3, 3) if "Conv" in operator else (small.INNER, small.OUTER)
    stored["w"] = np.random.default_rng(0).integers(0, 99, shape).astype(weights)
    zeros = ["activations zero", "weights zero"]
    inputs = ["q", "w", *zeros]
    if operator.startswith("QLinear"):
        inputs = ["q", "scale", zeros[0], "w", "scale", zeros[1], "wide", zeros[0]]
    last = helper.make_node("DequantizeLinear", ["p", "wide", zeros[0]], ["y"], "back")
    if not operator.startswith("QLinear"):
        last = helper.make_node("Cast", ["p"], ["y"], "back", to=1)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", zeros[0]], ["q"], "codes"),
        helper.make_node(operator, inputs, ["p"], "product"),
        last,
    ]
    rank, inside = (4, ("n", 4, 8, 8)) if "Conv" in operator else (2, ("n", small.INNER))
    return small.model(nodes, stored, rank, inside)


@pytest.mark.parametrize(
    ("operator", "activations", "weights", "signed"),
    [
        ("QLinearConv", np.int8, np.int8, True),
        ("QLinearConv", np.uint8, np.int8, False),
        ("QLinearMatMul", np.int8, np.int8, True),
        ("QLinearMatMul", np.uint8, np.int8, False),
        ("MatMulInteger", np.int8, np.int8, True),
        ("MatMulInteger", np.uint8, np.int8, False),
        ("ConvInteger", np.uint8, np.int8, True),
        ("ConvInteger", np.uint8, np.uint8, False),
    ],
)
def test_int8_on_the_left_is_named(operator, activations, weights, signed):
    """ConvInteger's kernel has the weights on the left, the others the activations."""
    convolution = "Conv" in operator
    feeds = small.samples(2, (4, 8, 8)) if convolution else small.samples()
    found = kernels(on_codes(operator, activations, weights), feeds)
    assert found.integer_share == 1
    assert [each.operator for each in found.signed] == [operator] * signed


def test_pairs_of_int8_are_moved_to_uint8():
    found = kernels(small.qdq_matmul(np.int8, np.int8))
    assert found.integer_share == 1
    assert found.signed == ()


def test_operators_without_names_are_found():
    built = small.dynamic_matmul()
    for node in built.graph.node:
        node.name = ""
    assert kernels(built).integer_share == 1
