"""Reverse-mode differentiation of one scalar of an ONNX graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from foldmark.errors import NoDerivative
from foldmark.graphs.derivative.facts import Facts
from foldmark.graphs.derivative.gelu import Gelu, find_gelus
from foldmark.graphs.derivative.kink import Kink
from foldmark.graphs.derivative.prepare import opset_of
from foldmark.graphs.derivative.samples import Apart, Meetings
from foldmark.graphs.derivative.table import FLAT, find_rule
from foldmark.graphs.derivative.tape import Step, Tape
from foldmark.graphs.inlining import names_read
from foldmark.graphs.light import LightModel, lighten, outside

__all__ = ["Derivative", "adding_up", "gradient", "so_far", "total_of"]


@dataclass(frozen=True)
class Derivative:
    """A graph that computes a value and its gradients.

    Attributes:
        model: the graph; its outputs are the value and the gradients.
        gradients: value -> the name of the output that holds the gradient with respect to it.
            A value that does not reach the output has none: its gradient is zero.
        kinks: functions with kinks whose means over a stretch are inputs of it.
        parts: input that takes a stored tensor's error -> output of shape (samples,) that holds
            the products of error and gradient sample by sample.
    """

    model: LightModel
    gradients: Mapping[str, str]
    kinks: tuple[Kink, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)


def gradient(
    model: onnx.ModelProto | LightModel,
    output: str,
    with_respect_to: Sequence[str],
    facts: Facts,
    *,
    seed: str = "",
    kinks: Mapping[str, Kink] | None = None,
    apart: Apart | None = None,
) -> Derivative:
    """Return the graph of factor * d(sum of `output`) / d(each of `with_respect_to`).

    Args:
        model: flat and prepared (see `prepare`).
        output: name of a value; a scalar in the usual case.
        with_respect_to: values, inputs or initializers of the graph.
        facts: types and shapes on the data that the graph will run on (see `probe`).
        seed: name of a further input, of the output's type and shape, that holds the factor;
            the factor is 1 when no name is given.
        kinks: functions whose means over a stretch are given as inputs, by the name of their
            value (see `find_kinks`); the slopes of all others are taken where they are.
        apart: stored tensors whose entries are wanted sample by sample.

    Raises:
        NoDerivative: an operator on the path has none; names operator and node.
    """
    light = lighten(model)
    tape = Tape(facts, opset_of(light.model))
    nodes = list(light.model.graph.node)
    moving = _moving(nodes, set(with_respect_to), tape)
    kept = {output, *with_respect_to, *(value.name for value in light.model.graph.output)}
    fact = facts[output]
    first = seed or tape.constant(np.ones(fact.shape), fact.dtype)
    gelus = find_gelus(nodes, kept, facts)
    meetings = Meetings(apart or Apart(frozenset(), {}), nodes, tape)
    known = _Known(gelus, kinks or {})
    arrived = _walk_back(nodes, {output: [first]}, moving, known, meetings)
    gradients = {name: _total(tape, arrived[name]) for name in with_respect_to if name in arrived}
    for index, node in tape.replaced.items():
        nodes[index] = node
    parts = meetings.totals()
    results = list(dict.fromkeys([output, *gradients.values(), *parts.values()]))
    derived = _assemble(light, nodes, tape, results)
    if seed:
        element = onnx.helper.np_dtype_to_tensor_dtype(fact.dtype)
        value = onnx.helper.make_tensor_value_info(seed, element, fact.shape)
        derived.model.graph.input.append(value)
    for error in parts:
        fact = facts[meetings.errors[error]]
        element = onnx.helper.np_dtype_to_tensor_dtype(fact.dtype)
        value = onnx.helper.make_tensor_value_info(error, element, fact.shape)
        derived.model.graph.input.append(value)
    return Derivative(derived, gradients, _with_means(derived.model, known.kinks, facts), parts)


def _with_means(
    model: onnx.ModelProto, kinks: Mapping[str, Kink], facts: Facts
) -> tuple[Kink, ...]:
    """Declare the means that the graph reads as inputs of it, and return whose they are."""
    read = {name for node in model.graph.node for name in node.input}
    met = []
    for kink in kinks.values():
        inputs = kink.inputs(facts) if kink.result in facts else {}
        if not read.intersection(inputs):
            continue
        met.append(kink)
        for name, fact in inputs.items():
            element = onnx.helper.np_dtype_to_tensor_dtype(fact.dtype)
            value = onnx.helper.make_tensor_value_info(name, element, fact.shape)
            model.graph.input.append(value)
    return tuple(met)


@dataclass(frozen=True)
class _Known:
    """What is differentiated as a whole instead of by an operator's rule.

    Attributes:
        gelus: by the index of their last node.
        kinks: by the name of their value.
    """

    gelus: Mapping[int, Gelu]
    kinks: Mapping[str, Kink]


def adding_up(derivative: Derivative, facts: Facts) -> LightModel:
    """Return the graph with an output `total_of(g)` = g + `so_far(g)`, an input, per gradient g.

    Each sum is taken where its gradient is made, so that the gradient itself is freed at once.
    An output may be bound to the memory of the input that it adds to.
    """
    values = {output: value for value, output in derivative.gradients.items()}
    values |= {output: error for error, output in derivative.parts.items()}
    model = onnx.ModelProto()
    model.CopyFrom(derivative.model.model)
    del model.graph.node[:]
    for node in derivative.model.model.graph.node:
        model.graph.node.append(node)
        for name in node.output:
            if name in values:
                total = onnx.helper.make_node("Add", [name, so_far(name)], [total_of(name)])
                total.name = total.output[0]
                model.graph.node.append(total)
    for output in model.graph.output:
        output.name = total_of(output.name) if output.name in values else output.name
    for name, value in values.items():
        # Of no stated shape, so that a scalar 0 can stand for "nothing yet".
        dtype = np.dtype(np.float32) if value in derivative.parts else facts[value].dtype
        element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(so_far(name), element, None))
    return LightModel(model, derivative.model.weights)


def so_far(output: str) -> str:
    """Return the name of the input that a gradient is added to."""
    return f"{output} so far"


def total_of(output: str) -> str:
    """Return the name of the output that holds a gradient's sum."""
    return f"{output} in all"


def _moving(nodes: Sequence[onnx.NodeProto], starts: set[str], tape: Tape) -> set[str]:
    """Return the values that move when one of `starts` moves."""
    moving = set(starts)
    for node in nodes:
        if node.op_type in FLAT or not any(name in moving for name in names_read(node)):
            continue
        for name in node.output:
            fact = tape.facts.get(name)
            if fact is None or fact.is_float:
                moving.add(name)
    return moving


def _walk_back(
    nodes: Sequence[onnx.NodeProto],
    arrived: dict[str, list[str]],
    moving: set[str],
    known: _Known,
    meetings: Meetings,
) -> dict[str, list[str]]:
    """Run every rule on the way back; add to what arrived at each value, and return it."""
    tape = meetings.tape
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if not any(name in arrived and name in moving for name in node.output):
            continue
        if index in known.gelus:
            gelu = known.gelus[index]
            if gelu.x in moving:
                g = gelu.gradient(tape, _total(tape, arrived[gelu.output]))
                arrived.setdefault(gelu.x, []).append(g)
            continue
        kink = known.kinks.get(node.output[0])
        if kink is not None:
            if moving.intersection(kink.arguments):
                back = kink.back(tape, _total(tape, arrived[kink.result]))
                for name in back.keys() & moving:
                    arrived.setdefault(name, []).append(back[name])
            continue
        wanted = [name in moving for name in node.input]
        if node.op_type in FLAT or not any(name in moving for name in names_read(node)):
            continue
        rule = find_rule(node.domain, node.op_type)
        if rule is None:
            raise NoDerivative(
                f"{node.op_type} has no derivative",
                where=f"node {node.name or node.output[0]!r}",
                todo="switch sites off one at a time instead",
            )
        incoming = [
            _total(tape, arrived[name]) if name in arrived else None for name in node.output
        ]
        if incoming[0] is not None:
            meetings.add(index, node, incoming[0])
        for slot, name in rule(Step(tape, node, index, incoming, wanted)).items():
            if wanted[slot]:
                arrived.setdefault(node.input[slot], []).append(name)
    return arrived


def _total(tape: Tape, contributions: list[str]) -> str:
    """Return the sum of what arrived from several consumers; the list becomes that one name."""
    if len(contributions) > 1:
        total = contributions[0]
        for more in contributions[1:]:
            total = tape.add(total, more)
        contributions[:] = [total]
    return contributions[0]


def _assemble(
    light: LightModel, nodes: Sequence[onnx.NodeProto], tape: Tape, results: Sequence[str]
) -> LightModel:
    """Return the model of forward and backward nodes, without what no result needs."""
    needed = set(results)
    kept = []
    for node in reversed([*nodes, *tape.nodes]):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed |= names_read(node)
    model = onnx.ModelProto()
    model.ir_version = light.model.ir_version
    model.opset_import.extend(light.model.opset_import)
    _declare(model, "com.microsoft", 1)
    graph = model.graph
    graph.name = "gradient"
    graph.node.extend(reversed(kept))
    graph.input.extend(_of_known_shape(value, tape.facts) for value in light.model.graph.input)
    weights = {name: array for name, array in light.weights.items() if name in needed}
    graph.initializer.extend(t for t in light.model.graph.initializer if t.name in needed)
    for name, array in tape.constants.items():
        if name not in needed:
            continue
        if array.nbytes >= 1024:
            weights[name] = array
            graph.initializer.append(outside(name, array))
        else:
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
    return LightModel(model, weights)


def _of_known_shape(value: onnx.ValueInfoProto, facts: Facts) -> onnx.ValueInfoProto:
    """Return an input with its observed shape: the runtime then plans memory beforehand."""
    fact = facts.get(value.name)
    if fact is None:
        return value
    element = onnx.helper.np_dtype_to_tensor_dtype(fact.dtype)
    return onnx.helper.make_tensor_value_info(value.name, element, fact.shape)


def _declare(model: onnx.ModelProto, domain: str, version: int) -> None:
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
