"""Rare operators: the derivative of one node by the `onnx-ad` package, spliced into the graph."""

from collections.abc import Callable

import onnx
import onnx_ad

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["OPERATORS", "single_node"]

# Recurrences over time and operators that ONNX defines in prose only.
OPERATORS = frozenset(
    {
        "Acos",
        "Acosh",
        "AffineGrid",
        "Asin",
        "Asinh",
        "Atanh",
        "Col2Im",
        "Compress",
        "CumProd",
        "DFT",
        "DeformConv",
        "GRU",
        "GlobalLpPool",
        "GridSample",
        "LRN",
        "LSTM",
        "LpPool",
        "MaxUnpool",
        "RNN",
        "RoiAlign",
        "STFT",
    }
)


def single_node(at: Step) -> Gradients:
    """Differentiate the node as a model of its own, with its observed shapes."""
    model = _one_node_model(at)
    inputs = [at.input(i) for i in range(len(at.wanted)) if at.wanted[i]]
    seeded = [name for name, g in zip(at.node.output, at.gradients, strict=True) if g is not None]
    try:
        adjoint = onnx_ad.reverse(
            model, inputs=inputs, outputs=seeded, prefix="seed ", layout="onnx"
        )
    except onnx_ad.UnsupportedOperator as error:
        raise at.refused(" ".join(str(error).split())) from error
    return _splice(at, adjoint, inputs)


def _one_node_model(at: Step) -> onnx.ModelProto:
    """Return a model of the node alone; its small known inputs are constants in it."""
    inputs, constants = [], []
    for name in dict.fromkeys(name for name in at.node.input if name):
        fact = at.fact(name)
        if fact.value is not None and not fact.is_float:
            constants.append(onnx.numpy_helper.from_array(fact.value, name))
        else:
            inputs.append(_described(at, name))
    outputs = [
        _described(at, name)
        for name, g in zip(at.node.output, at.gradients, strict=True)
        if g is not None
    ]
    graph = onnx.helper.make_graph([at.node], "one node", inputs, outputs, initializer=constants)
    opsets = [onnx.helper.make_opsetid(at.node.domain, at.tape.opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _described(at: Step, name: str) -> onnx.ValueInfoProto:
    fact = at.fact(name)
    element = onnx.helper.np_dtype_to_tensor_dtype(fact.dtype)
    return onnx.helper.make_tensor_value_info(name, element, fact.shape)


def _splice(at: Step, adjoint: onnx.ModelProto, inputs: list[str]) -> Gradients:
    """Copy the adjoint's nodes into the tape under new names; one seed, on a last axis."""
    tape = at.tape
    renamed = {name: name for name in at.node.input if name}
    last = tape.integers([-1])
    for name, gradient in zip(at.node.output, at.gradients, strict=True):
        if gradient is not None:
            renamed[f"seed {name}"] = tape.emit("Unsqueeze", gradient, last)

    def rename(name: str) -> str:
        if name and name not in renamed:
            renamed[name] = tape.fresh(at.node.op_type)
        return renamed.get(name, "")

    for tensor in adjoint.graph.initializer:
        if tensor.name not in at.node.input:
            renamed[tensor.name] = tape.constant(onnx.numpy_helper.to_array(tensor))
    for node in adjoint.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _rename_node(copy, rename, set())
        tape.nodes.append(copy)
    return {
        i: tape.emit("Squeeze", renamed[f"seed {name}"], last)
        for i, name in enumerate(at.node.input)
        if name in inputs and at.wants(i)
    }


def _rename_node(node: onnx.NodeProto, rename: Callable[[str], str], inner: set[str]) -> None:
    """Rename what a node touches of the outer graph; names made inside a subgraph stay."""
    node.input[:] = [name if name in inner else rename(name) for name in node.input]
    if not inner:
        node.output[:] = [rename(name) for name in node.output]
        node.name = node.output[0]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = inner | {value.name for value in graph.input} | {""}
            own |= {tensor.name for tensor in graph.initializer}
            own |= {name for child in graph.node for name in child.output}
            for child in graph.node:
                _rename_node(child, rename, own)
            for value in graph.output:
                if value.name not in own:
                    value.name = rename(value.name)
