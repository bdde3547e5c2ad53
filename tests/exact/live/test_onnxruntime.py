"""ONNX Runtime: its Python quantizers and its kernels give the codes that the rules give."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quant_utils
from onnxruntime.quantization.quant_utils import quantize_data
from tests.exact.live.groups import groups

from foldmark import rules
from foldmark.compare.engines import ENGINES
from foldmark.exact import catalog
from foldmark.exact.affine import quantize
from foldmark.exact.group import quantize_group
from foldmark.exact.rule import Rule
from foldmark.exact.tools.entry import Operator, Procedure

WEIGHT_RULES = [
    (rules.ONNXRUNTIME_WEIGHT_INT8, QuantType.QInt8, True, False),
    (rules.ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC, QuantType.QInt8, False, False),
    (rules.ONNXRUNTIME_WEIGHT_INT8_REDUCED, QuantType.QInt8, True, True),
    (rules.ONNXRUNTIME_WEIGHT_UINT8, QuantType.QUInt8, False, False),
    (rules.ONNXRUNTIME_WEIGHT_UINT8_REDUCED, QuantType.QUInt8, False, True),
    (rules.ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC, QuantType.QUInt8, True, False),
    (rules.ONNXRUNTIME_WEIGHT_INT16, QuantType.QInt16, True, False),
    (rules.ONNXRUNTIME_WEIGHT_UINT16, QuantType.QUInt16, False, False),
    (rules.ONNXRUNTIME_WEIGHT_INT4, QuantType.QInt4, True, False),
    (rules.ONNXRUNTIME_WEIGHT_UINT4, QuantType.QUInt4, False, False),
    (rules.ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC_REDUCED, QuantType.QInt8, False, True),
    (rules.ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC_REDUCED, QuantType.QUInt8, True, True),
    (rules.ONNXRUNTIME_WEIGHT_INT16_REDUCED, QuantType.QInt16, True, True),
    (rules.ONNXRUNTIME_WEIGHT_UINT16_REDUCED, QuantType.QUInt16, False, True),
    (rules.ONNXRUNTIME_WEIGHT_INT4_REDUCED, QuantType.QInt4, True, True),
    (rules.ONNXRUNTIME_WEIGHT_UINT4_REDUCED, QuantType.QUInt4, False, True),
]
OPERATORS = [
    (rules.ONNXRUNTIME_QUANTIZELINEAR_INT8, TensorProto.INT8),
    (rules.ONNXRUNTIME_QUANTIZELINEAR_UINT8, TensorProto.UINT8),
    (rules.ONNXRUNTIME_QUANTIZELINEAR_INT16, TensorProto.INT16),
    (rules.ONNXRUNTIME_QUANTIZELINEAR_UINT16, TensorProto.UINT16),
]


@pytest.mark.parametrize(
    ("rule", "kind", "symmetric", "reduced"), WEIGHT_RULES, ids=lambda v: getattr(v, "name", str(v))
)
def test_quantize_data(rule: Rule, kind: QuantType, symmetric: bool, reduced: bool) -> None:
    for values in groups():
        zero, scale, codes = quantize_data(
            values, kind.tensor_type, symmetric, reduce_range=reduced
        )[-3:]
        ours = quantize_group(values.tolist(), rule)
        assert list(ours.codes) == np.asarray(codes).astype(int).tolist()
        assert (ours.scale, ours.zero_point) == (float(scale), int(zero))


def test_blocks_of_a_weight() -> None:
    kind = TensorProto.UINT4
    for values in groups():
        zero, scale = quant_utils.compute_scale_zp_blocked(
            values[:, None], kind, 0, len(values), False
        )
        codes = quant_utils.quantize_nparray(kind, values, scale[0, 0], zero[0, 0])
        ours = quantize_group(values.tolist(), rules.ONNXRUNTIME_WEIGHT_BLOCKS_UINT4)
        assert list(ours.codes) == np.asarray(codes).astype(int).tolist()
        assert (ours.scale, ours.zero_point) == (float(scale[0, 0]), int(zero[0, 0]))


@pytest.mark.parametrize("symmetric", [False, True])
def test_two_bit_blocks(symmetric: bool) -> None:
    quantize_bits = onnxruntime.capi._pybind_state.quantize_matmul_2bits
    name = "SYMMETRIC" if symmetric else "ASYMMETRIC"
    rule = getattr(rules, f"ONNXRUNTIME_MATMULNBITS_2_{name}")
    for values in groups():
        block = values[:32]
        assert len(block) == 32
        packed, zero = np.zeros((1, 1, 8), np.uint8), np.zeros((1, 1), np.uint8)
        scale = np.zeros((1, 1), np.float32)
        quantize_bits(packed, block[:, None].copy(), scale, zero, 32, 1, 32, symmetric)
        codes = [int(packed[0, 0, i // 4]) >> 2 * (i % 4) & 3 for i in range(32)]
        ours = quantize_group(block.tolist(), rule)
        assert list(ours.codes) == codes
        assert ours.scale == scale.item()


def test_restricted_asymmetric_activations() -> None:
    for values in (v for group in groups() for v in (group, np.abs(group))):
        zero, scale = quant_utils.snap_zero_point_to_uint8(values.min(), values.max())
        signed = values.min() < 0
        rule = (
            rules.ONNXRUNTIME_RESTRICTED_UINT8
            if signed
            else rules.ONNXRUNTIME_RESTRICTED_UINT8_NONNEGATIVE
        )
        ours = quantize_group(values.tolist(), rule)
        assert (ours.scale, ours.zero_point) == (float(scale), int(zero))
        assert int(zero) == (128 if signed else 0)


def test_quantize_data_of_half_precision() -> None:
    tiny = [np.float16([6e-8, -6e-8]), np.float16([1e-5, -3e-6]), np.float16([7.6e-6, 1e-7])]
    for values in (*(g.astype(np.float16) for g in groups()), *tiny):
        zero, scale, codes = quantize_data(values, TensorProto.INT8, True)[-3:]
        rule = rules.ONNXRUNTIME_WEIGHT_INT8_FLOAT16
        ours = quantize_group(values.astype(float).tolist(), rule, catalog.FLOAT16)
        assert list(ours.codes) == np.asarray(codes).astype(int).tolist()
        assert (ours.scale, ours.zero_point) == (float(scale), int(zero))


def session_of(node: onnx.NodeProto, inputs: list, outputs: list) -> onnxruntime.InferenceSession:
    graph = helper.make_graph([node], "one", inputs, outputs)
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString())


SPECIALS = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, np.nan, np.inf, -np.inf, 6e4, -6e4, 3.5, 127.5, -128.5]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize(("operator", "codes"), OPERATORS, ids=lambda v: getattr(v, "name", str(v)))
def test_quantize_linear(operator: Operator, codes: int, kind: int) -> None:
    given = helper.make_tensor_value_info
    session = session_of(
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"]),
        [given("x", kind, [None]), given("s", kind, []), given("z", codes, [])],
        [given("y", codes, [None])],
    )
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    data = catalog.FLOAT16 if dtype == np.float16 else catalog.FLOAT32
    middle = (operator.codes.minimum + operator.codes.maximum + 1) // 2
    for scale in (1.0, 0.1, 0.00214854861):
        step = dtype.type(scale)
        ties = (np.arange(-40, 40) + 0.5).astype(dtype) * step
        values = np.concatenate(
            [np.array(SPECIALS, dtype), ties, np.nextafter(ties, dtype.type(9))]
        )
        for zero in (0, 3, middle, middle + 1):
            zero_array = np.array(zero, helper.tensor_dtype_to_np_dtype(codes))
            theirs = session.run(None, {"x": values, "s": np.array(step), "z": zero_array})[0]
            ours = quantize(values.astype(float).tolist(), float(step), zero, operator.affine, data)
            assert ours == theirs.tolist()


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.00214854861])
@pytest.mark.parametrize("zero", [0, 3, -128])
def test_the_reference_evaluator(scale: float, zero: int) -> None:
    from onnx.reference import ReferenceEvaluator

    given = helper.make_tensor_value_info
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    inputs = [
        given("x", TensorProto.FLOAT, [None]),
        given("s", TensorProto.FLOAT, []),
        given("z", TensorProto.INT8, []),
    ]
    output = given("y", TensorProto.INT8, [None])
    graph = helper.make_graph([node], "reference", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    step = np.float32(scale)
    ties = (np.arange(-40, 40) + 0.5).astype(np.float32) * step
    huge = np.float32([3e9, -3e9, 1e38, -1e38, np.inf, -np.inf, np.nan, 2147483648, 2147483520])
    values = np.concatenate([ties, np.nextafter(ties, np.float32(9)), huge, huge * step])
    with np.errstate(all="ignore"):
        feeds = {"x": values, "s": np.array(step), "z": np.array(zero, np.int8)}
        theirs = ReferenceEvaluator(model).run(None, feeds)[0].tolist()
    affine = rules.ONNX_REFERENCE_QUANTIZELINEAR_INT8.affine
    assert quantize(values.tolist(), float(step), zero, affine) == theirs
    # What saturates instead of wrapping is another rule, and these values tell them apart.
    saturating = rules.ONNXRUNTIME_QUANTIZELINEAR_INT8.affine
    assert quantize(values.tolist(), float(step), zero, saturating) != theirs


def test_dynamic_quantize_linear() -> None:
    given = helper.make_tensor_value_info
    session = session_of(
        helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]),
        [given("x", TensorProto.FLOAT, [None])],
        [
            given("y", TensorProto.UINT8, [None]),
            given("s", TensorProto.FLOAT, []),
            given("z", TensorProto.UINT8, []),
        ],
    )
    for values in groups():
        codes, scale, zero = session.run(None, {"x": values})
        ours = quantize_group(values.tolist(), rules.ONNXRUNTIME_DYNAMIC_UINT8)
        assert (list(ours.codes), ours.scale, ours.zero_point) == (codes.tolist(), scale, zero)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_matmul_n_bits(bits: int, symmetric: bool) -> None:
    from onnxruntime.capi import _pybind_state as state

    name = f"ONNXRUNTIME_MATMULNBITS_{bits}_{'SYMMETRIC' if symmetric else 'ASYMMETRIC'}"
    rule = getattr(rules, name)
    for values in groups():
        weights = np.ascontiguousarray(values[:, None])
        packed = np.zeros((1, 1, 64 * bits // 8), np.uint8)
        scales, zeros = np.zeros(1, np.float32), np.zeros((1, 1), np.uint8)
        function = state.quantize_matmul_4bits if bits == 4 else state.quantize_matmul_8bits
        function(packed, weights, scales, zeros, 64, 1, 64, symmetric)
        ours = quantize_group(values.tolist(), rule)
        flat = packed.reshape(-1)
        codes = np.stack([flat & 15, flat >> 4], 1).reshape(-1) if bits == 4 else flat
        assert list(ours.codes) == codes.tolist()
        assert ours.scale == float(scales[0])
        if not symmetric:
            assert ours.zero_point == int(zeros[0, 0]) & (15 if bits == 4 else 255)


@pytest.mark.parametrize("scheme", ["sym", "asym"])
def test_round_to_nearest(scheme: str) -> None:
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor

    symmetric = scheme == "sym"
    rule = rules.ONNXRUNTIME_RTN_4_SYMMETRIC if symmetric else rules.ONNXRUNTIME_RTN_4_ASYMMETRIC
    for values in groups():
        codes, scale, zero = quant_tensor(values[None].copy(), 4, 64, scheme, "uint")
        ours = quantize_group(values.tolist(), rule)
        assert list(ours.codes) == codes.reshape(-1).astype(int).tolist()
        assert ours.scale == float(np.float32(scale.reshape(-1)[0]))
        assert ours.zero_point == int(np.reshape(zero, -1)[0])


def test_k_quant() -> None:
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

    procedure = rules.ONNXRUNTIME_K_QUANT_4
    assert isinstance(procedure, Procedure)
    for values in groups()[::2]:
        with np.errstate(all="ignore"):
            codes, scale, zero = quant_tensor_k_quant_cpu(values[None].copy(), 4, 64)
        ours = procedure.quantize(values.tolist(), catalog.FLOAT32)
        assert list(ours.codes) == codes.reshape(-1).astype(int).tolist()
        assert (ours.scale, ours.zero_point) == (float(scale.item()), int(zero.item()))
        twin = ENGINES[1].functions[procedure.name](values.tolist(), catalog.FLOAT32)
        assert (list(twin.codes), twin.scale) == (list(ours.codes), ours.scale)


def test_half_quadratic() -> None:
    torch = pytest.importorskip("torch")
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        HQQWeightOnlyQuantConfig,
        HQQWeightOnlyQuantizer,
    )

    quantizer = HQQWeightOnlyQuantizer(HQQWeightOnlyQuantConfig(block_size=8))
    procedure = rules.ONNXRUNTIME_HQQ_4
    assert isinstance(procedure, Procedure)
    for values in groups():
        first = values[:8]
        codes, scale, zero = quantizer.quantize_internal(torch.tensor(first[None]), 4, True, 8)
        ours = procedure.quantize(first.tolist(), catalog.FLOAT32)
        assert list(ours.codes) == codes.reshape(-1).tolist()
        assert (ours.scale, ours.zero_point) == (scale.item(), zero.item())
