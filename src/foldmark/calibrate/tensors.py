"""Which activations are worth observing: those that products and their neighbours read and make."""

from collections.abc import Iterator

import onnx

from foldmark.graphs.exposing import inner_graphs, uniquely_named

__all__ = ["MADE", "READ", "observable"]

# operator -> inputs that may be activations worth codes.
READ: dict[str, tuple[int, ...]] = {
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Conv": (0,),
    "ConvTranspose": (0,),
    "Add": (0, 1),
    "Mul": (0, 1),
    "Concat": tuple(range(64)),
    "GlobalAveragePool": (0,),
    "AveragePool": (0,),
}
# Operators whose result may get codes, with the activation functions that products end in.
MADE = {
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Add", "Mul", "Concat"),
    *("GlobalAveragePool", "AveragePool", "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid"),
    *("HardSwish", "Softmax", "Gelu", "LayerNormalization"),
}
_PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


def observable(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the activations worth observing, those inside If, Loop and Scan last.

    Names of inner values are those of `graphs.exposing.uniquely_named`.
    """
    kinds = _element_types(model)
    return tuple(dict.fromkeys(_of_graphs(uniquely_named(model).graph, kinds, set())))


def _of_graphs(graph: onnx.GraphProto, kinds: dict[str, int], known: set[str]) -> Iterator[str]:
    yield from _of_graph(graph, kinds, known)
    inside = known | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _of_graphs(inner, kinds, inside)


def _of_graph(graph: onnx.GraphProto, kinds: dict[str, int], known: set[str]) -> list[str]:
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    near = _near_products(graph)
    found: dict[str, None] = {}
    for node in graph.node:
        if not near.intersection(node.output) and node.op_type not in _PRODUCTS:
            continue
        names = [node.input[i] for i in READ.get(node.op_type, ()) if i < len(node.input)]
        names += list(node.output) if node.op_type in MADE else []
        for name in names:
            is_float = kinds.get(name, onnx.TensorProto.FLOAT) in _FLOATS
            if name and name not in constants and name not in known and is_float:
                found.setdefault(name)
    return list(found)


def _near_products(graph: onnx.GraphProto) -> set[str]:
    """Return what is made by the nodes that read a product's result, or hand one on."""
    made = {name for node in graph.node if node.op_type in _PRODUCTS for name in node.output}
    near: set[str] = set()
    for node in graph.node:
        if node.op_type in MADE and set(node.input) & made:
            near |= set(node.output)
            made |= set(node.output)
    return near


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    return {value.name: value.type.tensor_type.elem_type for value in values}
