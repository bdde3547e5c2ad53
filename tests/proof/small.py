"""Small networks in every form that a kernel may take them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INNER, OUTER = 64, 32


def model(nodes, initializers, rank=2, shape=("n", INNER), opset=21):
    """A model from x to y."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def weight(seed=0):
    return np.random.default_rng(seed).standard_normal((INNER, OUTER)).astype(np.float32)


def codes():
    return np.clip(np.rint(weight() * 40), -127, 127).astype(np.int8)


def float_matmul():
    return model([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], {"w": weight()})


def dynamic_matmul():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantize"),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"], "product"),
        helper.make_node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale"], "scales"),
        helper.make_node("Mul", ["f", "scale"], ["y"], "unfold"),
    ]
    return model(nodes, {"w": codes(), "ws": np.float32(1 / 40)})


def cast_decoded_matmul():
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "ws"], ["wf"], "unfold"),
        helper.make_node("MatMul", ["x", "wf"], ["y"], "product"),
    ]
    return model(nodes, {"w": codes(), "ws": np.float32(1 / 40)})


def weight_only_matmul(kind=np.int8):
    """ONNX Runtime makes its own blocks of 8-bit weights; wider ones it can only dequantize."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], "unfold"),
        helper.make_node("MatMul", ["x", "wf"], ["y"], "product"),
    ]
    return model(nodes, {"w": codes().astype(kind), "ws": np.float32(1 / 40), "wz": kind(0)})


def qdq_matmul(activation=np.uint8, output=np.uint8, weights=np.int8, opset=17):
    zero, out_zero = (activation(128 if activation is np.uint8 else 0), output(0))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "q1"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "d1"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], "d2", axis=1),
        helper.make_node("MatMul", ["xd", "wf"], ["m"], "product"),
        helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["yq"], "q3"),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"], "d3"),
    ]
    stored = codes() if weights is np.int8 else (codes().astype(np.int16) + 128).astype(weights)
    stored_values = {
        "xs": np.float32(0.03), "xz": zero, "w": stored,
        "ws": np.full(OUTER, 1 / 40, np.float32), "wz": np.zeros(OUTER, weights),
        "ys": np.float32(0.2), "yz": out_zero,
    }  # fmt: skip
    return model(nodes, stored_values, opset=opset)


def conv(quantized=True, output_pair=True):
    """Convolution (8, 4, 3, 3), as quantize/dequantize pairs."""
    random = np.random.default_rng(3)
    real = random.standard_normal((8, 4, 3, 3)).astype(np.float32)
    if not quantized:
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)]
        return model(nodes, {"w": real}, rank=4, shape=("n", 4, 8, 8))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "q1"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "d1"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], "d2"),
        helper.make_node("Conv", ["xd", "wf"], ["c" if output_pair else "y"], "conv", pads=[1] * 4),
    ]
    if output_pair:
        nodes += [
            helper.make_node("QuantizeLinear", ["c", "ys", "xz"], ["yq"], "q3"),
            helper.make_node("DequantizeLinear", ["yq", "ys", "xz"], ["y"], "d3"),
        ]
    stored = {
        "xs": np.float32(0.03), "xz": np.uint8(128),
        "w": np.clip(np.rint(real * 40), -127, 127).astype(np.int8), "ws": np.float32(1 / 40),
    }  # fmt: skip
    if output_pair:
        stored["ys"] = np.float32(0.2)
    return model(nodes, stored, rank=4, shape=("n", 4, 8, 8))


def samples(count=8, shape=(INNER,), seed=1):
    return {"x": np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)}


def saved(built: onnx.ModelProto, path):
    onnx.save(built, path)
    return path
