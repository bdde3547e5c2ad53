"""A quantized model taken apart into what it computes in float and where it departs from it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from foldmark.errors import NothingQuantized, OperatorNotSupported
from foldmark.formats.onnx_tensor import is_external, tensor_array, tensor_dtype
from foldmark.graphs.labels import Labels, common_path
from foldmark.graphs.matching.float_weights import FloatWeights
from foldmark.graphs.matching.match import Match, match_weights
from foldmark.graphs.matching.same_network import changed_constants, check_same_network
from foldmark.graphs.reading.assembly import assemble, simulated_nodes, skeleton_nodes
from foldmark.graphs.reading.complete import check_complete
from foldmark.graphs.reading.half import widen
from foldmark.graphs.reading.nodes import subgraphs
from foldmark.graphs.reading.original import OriginalGraph
from foldmark.graphs.reading.outputs import with_float_outputs
from foldmark.graphs.reading.preparation import prepared
from foldmark.graphs.reading.rules import ON_CODES, RULES, key_of
from foldmark.graphs.reading.workspace import Draft, Workspace
from foldmark.graphs.roles import Roles
from foldmark.graphs.sites import QuantizedGraph, Site, UnmatchedWeight

__all__ = ["read_quantized"]


def read_quantized(
    quantized: onnx.ModelProto, float_model: onnx.ModelProto | None
) -> QuantizedGraph:
    """Take a quantized model apart: the simulated graph, the float skeleton and every site.

    In both graphs every float value of the quantized model keeps its name, and a site's
    `before` and `after` carry the same names too: for an activation the skeleton has an
    Identity from `before` to `after`. A weight is an initializer called `after`, which holds
    the dequantized values in the simulated graph and the float original in the skeleton.
    An output that is codes gets a DequantizeLinear behind it, in the original too.

    Args:
        quantized: the quantized model; control flow already specialised.
        float_model: the model it was made from, None to explain activations alone.

    Raises:
        NothingQuantized: no site was found.
        ModelsDiffer: the float model is another network.
        OperatorNotSupported: an operator on codes that no rule reads, by name.
        NonFiniteValue: a scale that is not finite, by name and index.
        InvalidScheme: a scale that does not fit its tensor, a node without what it needs.
    """
    quantized = with_float_outputs(quantized)
    original = None if float_model is None else OriginalGraph(float_model)
    space = Workspace.of(prepared(quantized), original)
    for node in space.model.graph.node:
        _refuse_inside(node)
        rule = RULES.get(key_of(node))
        if rule is None:
            space.copy(node)
        else:
            check_complete(space, node)
            rule(space, node)
    for value in space.model.graph.output:
        space.value(value.name)
    widen(space)
    simulated = assemble(space, simulated_nodes(space), {})
    smooth = skeleton_nodes(space, space.drafts)
    _refuse_left_over(smooth)
    drafts = _live(simulated, space.drafts)
    weights = _weights(space, drafts)
    known = None if float_model is None else FloatWeights(float_model)
    matches = match_weights(weights, known, simulated)
    originals = {
        name: _original(space, match, known, name)
        for name, match in matches.items()
        if isinstance(match, Match)
    }
    skeleton = assemble(space, smooth, originals)
    unmatched = _unmatched(drafts, matches, skeleton)
    parted = ""
    if known is not None:
        parted = check_same_network(known, skeleton, weights, matches)
        unmatched += tuple(changed_constants(known, skeleton, {d.after for d in drafts}))
    sites = _sites(skeleton, drafts, matches, float_model)
    odd = tuple(space.odd_scales.values())
    return QuantizedGraph(
        quantized, simulated, skeleton, sites, unmatched, odd, parted, space.files
    )


def _original(
    space: Workspace, match: Match, known: FloatWeights | None, name: str
) -> onnx.TensorProto:
    """Return a float original as a tensor of the type that the skeleton computes in.

    One that lies in a file, and fits as it is, stays there.
    """
    stored = space.constants[name]
    tensor = stored if known is None else known.tensors.get(match.name, stored)
    is_kept = is_external(tensor) and match.is_whole
    if is_kept and (tensor.dims, tensor.data_type) == (stored.dims, stored.data_type):
        return tensor
    array = match.array.astype(tensor_dtype(stored), copy=False)
    return space.files.tensor(array, stored.name)


def _live(simulated: onnx.ModelProto, drafts: list[Draft]) -> list[Draft]:
    """Return the drafts whose value the outputs depend on."""
    read = {name for node in simulated.graph.node for name in (*node.input, *node.output)}
    live = [draft for draft in drafts if draft.after in read]
    if not live:
        raise NothingQuantized(
            "nothing in the quantized model is quantized",
            todo="give the quantized model second; is it a second copy of the float model?",
        )
    return live


def _weights(space: Workspace, drafts: list[Draft]) -> list[tuple[Draft, NDArray[Any]]]:
    return [
        (draft, tensor_array(space.constants[draft.after])) for draft in drafts if draft.is_weight
    ]


def _sites(
    skeleton: onnx.ModelProto,
    drafts: list[Draft],
    matches: dict[str, Match | str],
    float_model: onnx.ModelProto | None,
) -> tuple[Site, ...]:
    """Return the sites in graph order, each under a name of its own.

    Where the quantized graph's names do not tell a site's layer, the float graph's may.
    """
    roles = Roles(skeleton.graph)
    labels = [_labels(model) for model in (float_model, skeleton) if model is not None]
    makers = {name: node.op_type for node in skeleton.graph.node for name in node.output}
    placed = []
    for draft in drafts:
        match = matches.get(draft.after)
        if isinstance(match, str):
            continue
        name = match.name if match is not None else draft.name
        role = roles.of(draft.after, is_weight=draft.is_weight, parameter=name)
        site = Site(
            name,
            role.kind,
            role.operator,
            role.layer or _layer(name, draft.after, labels),
            draft.after,
            draft.after if draft.is_weight else draft.before,
            draft.after,
            draft.encoding,
            draft.codes,
            makers.get(draft.before, ""),
        )
        placed.append((role.place, site))
    placed.sort(key=lambda pair: pair[0])
    return _named_apart([site for _, site in placed])


def _labels(model: onnx.ModelProto) -> Labels:
    return Labels(model.graph.node, [tensor.name for tensor in model.graph.initializer])


def _layer(name: str, value: str, labels: list[Labels]) -> str:
    """Return the module of a site by the names of its float original, or by what is near it."""
    of_parts = [labels[0].near(part) for part in name.split(" + ")]
    return common_path(of_parts) or labels[-1].near(value)


def _named_apart(sites: list[Site]) -> tuple[Site, ...]:
    """Number the sites that share a name: one tensor quantized twice."""
    shared = {name for name, count in Counter(site.name for site in sites).items() if count > 1}
    seen: Counter[str] = Counter()
    named = []
    for site in sites:
        seen[site.name] += 1
        number = f" #{seen[site.name]}" if site.name in shared else ""
        named.append(replace(site, name=site.name + number))
    return tuple(named)


def _unmatched(
    drafts: list[Draft], matches: dict[str, Match | str], skeleton: onnx.ModelProto
) -> tuple[UnmatchedWeight, ...]:
    roles, found = Roles(skeleton.graph), []
    for draft in drafts:
        reason = matches.get(draft.after)
        if draft.codes is not None and isinstance(reason, str):
            role = roles.of(draft.after, is_weight=True, parameter=draft.name)
            layer = role.layer or _layer(draft.name, draft.after, [_labels(skeleton)])
            shape = tuple(draft.codes.shape)
            found.append(UnmatchedWeight(draft.name, shape, reason, layer, role.operator))
    return tuple(found)


def _refuse_inside(node: onnx.NodeProto) -> None:
    """Refuse quantization inside a subgraph: its sites have no one value to be added to."""
    for name, graph in subgraphs(node):
        for inner in graph.node:
            if key_of(inner) in ON_CODES or inner.op_type.endswith(
                ("QuantizeLinear", "DequantizeLinear")
            ):
                raise OperatorNotSupported(
                    f"{inner.op_type} inside a subgraph",
                    where=f"{node.op_type} node {node.name or node.output[0]!r}, {name}",
                    todo="choose the branch that the data takes first",
                )
            _refuse_inside(inner)


def _refuse_left_over(nodes: list[onnx.NodeProto]) -> None:
    """Refuse an operator that computes on codes where all quantization should be gone."""
    makers = {
        name: node
        for node in nodes
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
        for name in node.output
    }
    for node in nodes:
        where = f"node {node.name or node.output[0]!r}"
        if key_of(node) in ON_CODES:
            raise OperatorNotSupported(
                f"{node.op_type} in a form that is not read",
                where=where,
                got=f"inputs {', '.join(node.input)}",
            )
        codes = next((name for name in node.input if name in makers), None)
        if codes is not None:
            raise OperatorNotSupported(f"{node.op_type} on codes", where=where, got=repr(codes))
