"""Operators on integers are each read by a rule, or refused by name; none is copied as it is."""

import pytest
from tests.graphs.networks import Network, draw

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.read import read_quantized
from foldmark.graphs.reading.rules import ON_CODES, RULES

ONNX = ("QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger")
MICROSOFT = (
    "QLinearConv",
    "QGemm",
    "QLinearAdd",
    "QLinearMul",
    "QLinearGlobalAveragePool",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearSoftmax",
    "QLinearReduceMean",
    "QLinearWhere",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QEmbedLayerNormalization",
    "QAttention",
    "MatMulNBits",
    "GatherBlockQuantized",
)
KEYS = [("", name) for name in ONNX] + [("com.microsoft", name) for name in MICROSOFT]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[1])
def test_an_operator_on_integers_has_a_rule_and_may_not_be_left_over(key: tuple[str, str]) -> None:
    assert key in RULES
    assert key in ON_CODES


def test_the_list_is_all_that_is_read() -> None:
    read = {key for key in RULES if key in ON_CODES}
    assert read == set(KEYS)


@pytest.mark.parametrize("name", sorted(name for _, name in ON_CODES - set(RULES)))
def test_an_operator_without_a_rule_is_refused_by_name(name: str) -> None:
    net = Network()
    net.input("x", ["n", 4])
    x = net.pair("x", draw(1)[0] ** 2 + 1, 0 * draw(1).astype("int8")[0])
    net.node(name, [x], "y", "com.microsoft")
    net.output("y")
    with pytest.raises(OperatorNotSupported, match=f"{name} in a form that is not read") as caught:
        read_quantized(net.model("com.microsoft"), None)
    assert caught.value.where == "node '/y'"
