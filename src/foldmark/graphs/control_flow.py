"""Models with If, Loop and Scan as the flat graph that their data makes of them.

Which branch is taken and how often a loop runs is observed on the data. The branch taken is
inlined and the loop unrolled, so that everything else sees one flat graph. The values that
decided stay in that graph: on other data they tell whether it is still the same one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray

from foldmark.errors import ModelsDiffer, NotSupported
from foldmark.graphs.inlining import Outer, inline, replaced_nodes, subgraphs

__all__ = ["Decision", "Observe", "Specialised", "has_control_flow", "same_decisions", "specialise"]

# Runs a model on the data at hand and returns the named values.
Observe = Callable[[onnx.ModelProto, Sequence[str]], Mapping[str, NDArray[np.generic]]]

_MOST_NODES = 50_000


@dataclass(frozen=True)
class Decision:
    """What the data chose at one node.

    Attributes:
        node: the node's name.
        operator: "If", "Loop" or "Scan".
        choice: 1 or 0 for the branch taken, or the number of iterations.
        watched: values of the flat graph -> what they must be for the choice to stand.
    """

    node: str
    operator: str
    choice: int
    watched: Mapping[str, int]

    def sentence(self) -> str:
        """Return the choice in words."""
        if self.operator == "If":
            return f"If {self.node!r} takes its {'then' if self.choice else 'else'} branch"
        return f"{self.operator} {self.node!r} runs {self.choice} times"


@dataclass(frozen=True)
class Specialised:
    """A flat graph and the decisions that made it flat.

    Attributes:
        model: without If, Loop and Scan; inputs and outputs unchanged.
        decisions: in the order in which they were taken.
    """

    model: onnx.ModelProto
    decisions: tuple[Decision, ...]

    @property
    def watched(self) -> tuple[str, ...]:
        """The values inside `model` that decide; inputs may decide too."""
        inputs = {value.name for value in self.model.graph.input}
        names = (name for d in self.decisions for name in d.watched if name not in inputs)
        return tuple(dict.fromkeys(names))

    def departure(self, values: Mapping[str, NDArray[np.generic]]) -> Decision | None:
        """Return the first decision that other data takes otherwise, None when all stand.

        Args:
            values: the inputs and the `watched` values on that data.
        """
        for decision in self.decisions:
            for name, expected in decision.watched.items():
                if int(values[name].reshape(-1)[0]) != expected:
                    return decision
        return None


def has_control_flow(model: onnx.ModelProto) -> bool:
    """Return True when the model holds an If, a Loop or a Scan, in a local function or outside."""
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    return any(node.op_type in _EXPANSIONS for nodes in bodies for node in nodes)


def specialise(model: onnx.ModelProto, observe: Observe) -> Specialised:
    """Return the flat graph that the data makes of a model; the argument is not changed.

    Raises NotSupported when unrolling gives too many nodes, or a form can't be unrolled.
    """
    flat = onnx.ModelProto()
    flat.CopyFrom(onnx.inliner.inline_local_functions(model) if model.functions else model)
    decisions: list[Decision] = []
    while any(node.op_type in _EXPANSIONS for node in flat.graph.node):
        choices = _observed(flat, observe)
        outer = Outer(flat.graph)
        nodes: list[onnx.NodeProto] = []
        for node in list(flat.graph.node):
            expand = _EXPANSIONS.get(node.op_type)
            if expand is None:
                nodes.append(node)
                continue
            key = node.output[0] or node.name
            made, watched = expand(outer, node, choices[key])
            nodes.extend(made)
            label = node.name or key
            decisions.append(Decision(label, node.op_type, choices[key], watched))
            if len(nodes) > _MOST_NODES:
                raise NotSupported(
                    f"unrolled it has more than {_MOST_NODES} nodes",
                    where=f"{node.op_type} {label!r}",
                    todo="give shorter samples",
                )
        replaced_nodes(flat.graph, nodes)
    return Specialised(flat, tuple(decisions))


def same_decisions(exact: Specialised, quantized: Specialised) -> None:
    """Raise ModelsDiffer unless two models took the same branches and turns on the data."""
    for one, other in zip(exact.decisions, quantized.decisions, strict=False):
        if (one.operator, one.choice) != (other.operator, other.choice):
            raise ModelsDiffer(
                "on these samples the two models take different paths",
                where=f"node {one.node!r}",
                got=f"quantized: {other.sentence()}",
                expected=f"as in float: {one.sentence()}",
                todo="explain samples on which both take the same path",
            )
    if len(exact.decisions) != len(quantized.decisions):
        raise ModelsDiffer(
            "the two models branch in different places",
            got=f"{len(quantized.decisions)} decisions in the quantized model",
            expected=str(len(exact.decisions)),
        )


def _observed(flat: onnx.ModelProto, observe: Observe) -> dict[str, int]:
    """Return what each control node of the outer graph does on the data, by its first output."""
    probing = onnx.ModelProto()
    probing.CopyFrom(flat)
    constants = {tensor.name: tensor for tensor in flat.graph.initializer}
    wanted: dict[str, str] = {}
    known: dict[str, int] = {}
    nodes: list[onnx.NodeProto] = []
    for node in probing.graph.node:
        nodes.append(node)
        key = node.output[0] or node.name
        if node.op_type == "If":
            condition = node.input[0]
            if condition in constants:
                known[key] = _integer(constants[condition])
            else:
                wanted[key] = condition
        elif node.op_type == "Loop":
            wanted[key] = _count_turns(node)
            nodes.append(_shape(wanted[key], f"turns of {key}"))
            wanted[key] = f"turns of {key}"
        elif node.op_type == "Scan":
            scanned, axis = _first_scanned(node)
            wanted[key] = f"turns of {key}"
            nodes.append(_shape(scanned, wanted[key], axis))
    if wanted:
        replaced_nodes(probing.graph, nodes)
        values = observe(probing, list(dict.fromkeys(wanted.values())))
        known |= {key: int(values[name].reshape(-1)[0]) for key, name in wanted.items()}
    return known


def _count_turns(node: onnx.NodeProto) -> str:
    """Add an output to a Loop that has one entry a turn, and return its name."""
    (body,) = subgraphs(node)
    # ONNX Runtime takes no nameless output of a Loop.
    for i, name in enumerate(node.output):
        node.output[i] = name or f"output {i} of {node.name}"
    turn = f"turn of {node.output[0] or node.name}"
    body.node.append(onnx.helper.make_node("Identity", [body.input[0].name], [turn]))
    body.output.append(onnx.helper.make_tensor_value_info(turn, onnx.TensorProto.INT64, []))
    node.output.append(f"each {turn}")
    return node.output[-1]


def _shape(value: str, name: str, axis: int = 0) -> onnx.NodeProto:
    """Return a node for the length of one axis."""
    end = {} if axis == -1 else {"end": axis + 1}
    return onnx.helper.make_node("Shape", [value], [name], start=axis, **end)


Expansion = tuple[list[onnx.NodeProto], dict[str, int]]


def _expand_if(outer: Outer, node: onnx.NodeProto, choice: int) -> Expansion:
    wanted = "then_branch" if choice else "else_branch"
    branch = next(a.g for a in node.attribute if a.name == wanted)
    nodes, _ = inline(branch, outer, {}, list(node.output))
    condition = node.input[0]
    constant = any(tensor.name == condition for tensor in outer.graph.initializer)
    return nodes, {} if constant else {condition: choice}


def _expand_loop(outer: Outer, node: onnx.NodeProto, turns: int) -> Expansion:
    """Unroll a Loop: (turn, condition, state...) -> (condition, state..., stacked...)."""
    (body,) = subgraphs(node)
    condition = node.input[1] if len(node.input) > 1 else ""
    state = list(node.input[2:])
    nodes: list[onnx.NodeProto] = []
    conditions = [condition]
    stacks: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    true = outer.constant("condition", np.bool_(True)) if turns else ""
    for turn in range(turns):
        counter = outer.constant(f"turn {turn}", np.int64(turn))
        given = [counter, true, *state]
        inputs = {value.name: name for value, name in zip(body.input, given, strict=True)}
        made, results = inline(body, outer, inputs, suffix=f" turn {turn}")
        nodes += made
        conditions.append(results[0])
        state = results[1 : 1 + len(state)]
        for stack, name in zip(stacks, results[1 + len(state) :], strict=True):
            stack.append(name)
    for name, output in zip(state, node.output, strict=False):
        if output:
            nodes.append(onnx.helper.make_node("Identity", [name], [output], name=output))
    for stack, output in zip(stacks, node.output[len(state) :], strict=False):
        if output in outer.read:
            nodes += _stacked(outer, stack, output, node)
    watching, watched = _loop_watch(outer, node.input[0], conditions, turns)
    return nodes + watching, watched


def _loop_watch(outer: Outer, limit: str, conditions: Sequence[str], turns: int) -> Expansion:
    """Return what must hold for a Loop to run this often.

    Every condition but the last let it go on. It stopped since the last did not, or since the
    limit was reached.
    """
    constants = {tensor.name: tensor for tensor in outer.graph.initializer}
    *earlier, last = (name if name not in constants else "" for name in conditions)
    watched = {name: 1 for name in earlier if name}
    if limit in constants or not limit:
        at_limit = bool(limit) and _integer(constants[limit]) <= turns
        return [], watched if at_limit or not last else {**watched, last: 0}
    if not last:
        return [], {**watched, limit: turns}
    count = outer.constant(f"{turns} turns", np.int64(turns))
    reached, under, ended, stopped = (
        outer.fresh(f"{limit} {what}") for what in ("reached", "not passed", "ended", "stops")
    )
    nodes = [
        onnx.helper.make_node("LessOrEqual", [limit, count], [reached], name=reached),
        onnx.helper.make_node("GreaterOrEqual", [limit, count], [under], name=under),
        onnx.helper.make_node("Not", [last], [ended], name=ended),
        onnx.helper.make_node("Or", [reached, ended], [stopped], name=stopped),
    ]
    return nodes, {**watched, under: 1, stopped: 1}


def _integer(tensor: onnx.TensorProto) -> int:
    return int(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])


def _expand_scan(outer: Outer, node: onnx.NodeProto, turns: int) -> Expansion:
    """Unroll a Scan: (state..., slices...) -> (state..., stacked...)."""
    (body,) = subgraphs(node)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    count = int(attributes["num_scan_inputs"])
    state, scanned = list(node.input[:-count]), list(node.input[-count:])
    axes = list(attributes.get("scan_input_axes", [0] * count))
    backward = list(attributes.get("scan_input_directions", [0] * count))
    nodes: list[onnx.NodeProto] = []
    slices = []
    for name, axis, reverse in zip(scanned, axes, backward, strict=True):
        made, parts = _sliced(outer, name, int(axis), turns)
        nodes += made
        slices.append(parts[::-1] if reverse else parts)
    stacks: list[list[str]] = [[] for _ in range(len(body.output) - len(state))]
    for turn in range(turns):
        given = [*state, *(parts[turn] for parts in slices)]
        inputs = {value.name: name for value, name in zip(body.input, given, strict=True)}
        made, results = inline(body, outer, inputs, suffix=f" turn {turn}")
        nodes += made
        state = results[: len(state)]
        for stack, name in zip(stacks, results[len(state) :], strict=True):
            stack.append(name)
    for name, output in zip(state, node.output, strict=False):
        if output:
            nodes.append(onnx.helper.make_node("Identity", [name], [output], name=output))
    out_axes = list(attributes.get("scan_output_axes", [0] * len(stacks)))
    out_backward = list(attributes.get("scan_output_directions", [0] * len(stacks)))
    for i, output in enumerate(node.output[len(state) :]):
        if output in outer.read:
            stack = stacks[i][::-1] if out_backward[i] else stacks[i]
            nodes += _stacked(outer, stack, output, node, axis=int(out_axes[i]))
    length = outer.fresh(f"turns of {node.name or node.output[0]}")
    nodes.append(_shape(scanned[0], length, int(axes[0])))
    return nodes, {length: turns}


def _first_scanned(node: onnx.NodeProto) -> tuple[str, int]:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    count = int(attributes["num_scan_inputs"])
    return node.input[-count], int(attributes.get("scan_input_axes", [0])[0])


def _sliced(
    outer: Outer, value: str, axis: int, turns: int
) -> tuple[list[onnx.NodeProto], list[str]]:
    """Cut a value into its slices along an axis."""
    if turns == 0:
        return [], []
    sizes = outer.constant(f"slices of {value}", np.ones(turns, np.int64))
    axes = outer.constant(f"axis of {value}", np.array([axis], np.int64))
    thick = [outer.fresh(f"{value} slice {turn}") for turn in range(turns)]
    thin = [outer.fresh(f"{value} turn {turn}") for turn in range(turns)]
    nodes = [onnx.helper.make_node("Split", [value, sizes], thick, axis=axis, name=thick[0])]
    nodes += [
        onnx.helper.make_node("Squeeze", [a, axes], [b], name=b)
        for a, b in zip(thick, thin, strict=True)
    ]
    return nodes, thin


def _stacked(
    outer: Outer,
    parts: Sequence[str],
    output: str,
    node: onnx.NodeProto,
    *,
    axis: int = 0,
) -> list[onnx.NodeProto]:
    """Join one value a turn along a new axis."""
    if not parts:
        raise NotSupported(
            "it runs no turn and its collected output is used",
            where=f"{node.op_type} {node.name or output!r}",
        )
    axes = outer.constant(f"axis of {output}", np.array([axis], np.int64))
    thick = [outer.fresh(f"{output} turn {turn}") for turn in range(len(parts))]
    nodes = [
        onnx.helper.make_node("Unsqueeze", [part, axes], [name], name=name)
        for part, name in zip(parts, thick, strict=True)
    ]
    # A negative axis counts in the joined rank, which each part has by now.
    nodes.append(onnx.helper.make_node("Concat", thick, [output], axis=axis, name=output))
    return nodes


_EXPANSIONS = {"If": _expand_if, "Loop": _expand_loop, "Scan": _expand_scan}
