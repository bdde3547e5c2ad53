"""Values inside branches and loops, brought out of them so that they can be observed.

    If     each branch gives its values as further outputs, and nothing for those of the other
    Loop   a further loop-carried value collects what each turn makes
    Scan   a further scan output does

A value comes out flat, as float32, all turns of a loop behind each other; one that no sample
reached comes out empty.
"""

from collections.abc import Iterable, Iterator

import onnx
from onnx import TensorProto, helper

__all__ = ["defined_names", "expose", "inner_graphs", "uniquely_named"]

_PREFIX = "foldmark.exposed"


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds."""
    for each in node.attribute:
        if each.HasField("g"):
            yield each.g
        yield from each.graphs


def defined_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names that a graph gives to values: inputs, constants, results."""
    names = [value.name for value in graph.input]
    names += [tensor.name for tensor in graph.initializer]
    names += [name for node in graph.node for name in node.output if name]
    return list(dict.fromkeys(names))


def uniquely_named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with no value name used twice; the argument itself where none is.

    The two branches of an If may call different values alike. Names of the outer graph stay.
    """
    if not any(True for node in model.graph.node for _ in inner_graphs(node)):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    taken = set(defined_names(made.graph))
    for node in made.graph.node:
        for graph in inner_graphs(node):
            _rename(graph, taken, {})
    return made


def _rename(graph: onnx.GraphProto, taken: set[str], outer: dict[str, str]) -> None:
    new = dict(outer)
    for name in defined_names(graph):
        chosen, number = name, 1
        while chosen in taken:
            number += 1
            chosen = f"{name}_{number}"
        taken.add(chosen)
        new[name] = chosen
    for each in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        each.name = new.get(each.name, each.name)
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new.get(name, name)
        for inner in inner_graphs(node):
            _rename(inner, taken, new)


def expose(model: onnx.ModelProto, wanted: Iterable[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the model and, for every wanted value inside another graph, its outer name.

    Names must be unique: see `uniquely_named`. Values of the outer graph are left out.
    """
    inner = set(wanted) - set(defined_names(model.graph))
    if not inner:
        return model, {}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made, _surface(made.graph, inner)


def _surface(graph: onnx.GraphProto, wanted: set[str]) -> dict[str, str]:
    """Bring the wanted values of all inner graphs into `graph`; return their names there."""
    found: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        inside = [(inner, _flattened(inner, wanted)) for inner in inner_graphs(node)]
        if any(names for _, names in inside):
            match node.op_type:
                case "If":
                    found |= _out_of_branches(node, inside)
                case "Loop":
                    found |= _out_of_loop(node, *inside[0], before)
                case "Scan":
                    found |= _out_of_scan(node, *inside[0], after)
        nodes += [*before, node, *after]
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)
    return found


def _flattened(graph: onnx.GraphProto, wanted: set[str]) -> dict[str, str]:
    """Flatten the wanted values of a graph, inner ones included; return the flat names."""
    found = _surface(graph, wanted)
    constants = {tensor.name for tensor in graph.initializer}
    own = [name for name in defined_names(graph) if name in wanted and name not in constants]
    for name in own:
        flat, real, shape = (f"{_PREFIX}.{name}{end}" for end in ("", ".float", ".shape"))
        graph.node.append(helper.make_node("Cast", [name], [real], real, to=TensorProto.FLOAT))
        graph.node.append(_constant(shape, TensorProto.INT64, [1], [-1]))
        graph.node.append(helper.make_node("Reshape", [real, shape], [flat], flat))
        found[name] = flat
    return found


Inside = tuple[onnx.GraphProto, dict[str, str]]


def _out_of_branches(node: onnx.NodeProto, inside: list[Inside]) -> dict[str, str]:
    found = {}
    for mine, names in inside:
        for name, flat in names.items():
            for graph, _ in inside:
                result = flat if graph is mine else f"{flat}.none"
                if graph is not mine:
                    graph.node.append(_constant(result, TensorProto.FLOAT, [0], []))
                graph.output.append(_vector(result))
            found[name] = f"{flat}.out"
            node.output.append(found[name])
    return found


def _out_of_loop(
    node: onnx.NodeProto, body: onnx.GraphProto, names: dict[str, str], before: list[onnx.NodeProto]
) -> dict[str, str]:
    found = {}
    for name, flat in names.items():
        nothing, old, new = (f"{flat}.{end}" for end in ("start", "old", "new"))
        before.append(_constant(nothing, TensorProto.FLOAT, [0], []))
        carried = len(body.input) - 2  # all but the turn and the condition
        node.input.extend([""] * (2 - len(node.input)))
        node.input.append(nothing)
        body.input.append(_vector(old))
        body.node.append(helper.make_node("Concat", [old, flat], [new], new, axis=0))
        body.output.insert(1 + carried, _vector(new))  # behind the condition and what is carried
        found[name] = f"{flat}.out"
        node.output.extend([""] * (carried - len(node.output)))
        node.output.insert(carried, found[name])
    return found


def _out_of_scan(
    node: onnx.NodeProto, body: onnx.GraphProto, names: dict[str, str], after: list[onnx.NodeProto]
) -> dict[str, str]:
    found = {}
    for name, flat in names.items():
        stacked, shape, out = (f"{flat}.{end}" for end in ("turns", "flat", "out"))
        body.output.append(_vector(flat))
        node.output.append(stacked)
        for each in node.attribute:
            if each.name in ("scan_output_axes", "scan_output_directions"):
                each.ints.append(0)
        after.append(_constant(shape, TensorProto.INT64, [1], [-1]))
        after.append(helper.make_node("Reshape", [stacked, shape], [out], out))
        found[name] = out
    return found


def _vector(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None])


def _constant(name: str, kind: int, shape: list[int], values: list[int]) -> onnx.NodeProto:
    tensor = helper.make_tensor(name, kind, shape, values)
    return helper.make_node("Constant", [], [name], name, value=tensor)
