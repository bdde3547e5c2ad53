"""Small float networks, each with the trait that a test is about."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def net(nodes, stored, x, y_rank=2, opset=17):
    """A model from x (its shape given, "n" first) to y."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * y_rank)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def columns_of_very_different_size():
    """(8, 6) with columns from 1 down to 1e-4."""
    return (random(8, 6) * np.geomspace(1, 1e-4, 6)).astype(np.float32)


def gemm(transposed, weight=None, bias=None, **attributes):
    weight = columns_of_very_different_size() if weight is None else weight
    stored = {"w": weight.T.copy() if transposed else weight}
    inputs = ["x", "w"]
    if bias is not None:
        stored["b"] = bias
        inputs.append("b")
    node = helper.make_node("Gemm", inputs, ["y"], "gemm", transB=int(transposed), **attributes)
    return net([node], stored, ("n", weight.shape[0]))


def matmul(weight):
    return net([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], {"w": weight},
               ("n", weight.shape[0]))  # fmt: skip


def conv_transpose(inside, outside, group):
    weight = random(inside, outside // group, 3, 3)
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", group=group)
    stored = {"w": weight, "b": random(outside, seed=1)}
    return net([node], stored, ("n", inside, 5, 5), 4)


def conv(opset=17, weight=None, bias=None, **attributes):
    weight = random(4, 3, 3, 3) if weight is None else weight
    stored = {"w": weight} | ({"b": bias} if bias is not None else {})
    node = helper.make_node("Conv", ["x", *stored], ["y"], "conv", **attributes)
    side = weight.shape[2] + 5
    return net([node], stored, ("n", weight.shape[1], side, side), 4, opset)


def samples(model, count=32, scale=1.0, seed=5):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    return {"x": (random(count, *shape, seed=seed) * scale).astype(np.float32)}


def stored(model: onnx.ModelProto, ending):
    """The one initializer whose name ends so."""
    (found,) = [t for t in model.graph.initializer if t.name.endswith(ending)]
    return numpy_helper.to_array(found)


BRANCHES = ("first", "second", "third")


def joined():
    """A loud tensor and a quiet one joined, so that the quiet one's codes are lost in the sum.

        a = conv(x)  about 1      t = concat(a, b)      y = mean(first(t) + second(t) + third(t))
        b = conv(x)  about 1000

    Two branches read the quiet half, one the loud half, and all count alike. The join reads codes
    and gives codes: what reads `t` reads those, whether it multiplies in float or not.
    """
    stored = {
        "quiet": random(16, 3, 3, 3) * 0.2,
        "loud": random(16, 3, 3, 3, seed=1) * 200,
        **{name: random(10, 32, 1, 1, seed=i + 2) for i, name in enumerate(BRANCHES)},
    }
    for name in BRANCHES[:2]:
        stored[name][:, 16:] = 0
    stored["third"][:, :16] = 0
    stored["third"] /= 1000
    nodes = [
        helper.make_node("Conv", ["x", "quiet"], ["a"], "quiet/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "loud"], ["b"], "loud/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["a", "b"], ["t"], "join", axis=1),
        *(helper.make_node("Conv", ["t", n], [f"{n}_y"], f"{n}/conv") for n in BRANCHES),
        helper.make_node("Sum", [f"{n}_y" for n in BRANCHES], ["s"], "sum"),
        helper.make_node("Relu", ["s"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["m"], "mean"),
        helper.make_node("Flatten", ["m"], ["y"], "flat"),
    ]
    return net(nodes, stored, ("n", 3, 8, 8))
