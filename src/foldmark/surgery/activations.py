"""Where activations get codes in a static graph: the plan of quantize/dequantize pairs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import onnx

from foldmark.calibrate.observers import Range
from foldmark.exact.grid import choose_grid
from foldmark.exact.rule import Rule
from foldmark.exact.tools import onnxruntime as rules
from foldmark.surgery.account import Account, Left
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, Scope, consumers, node_name
from foldmark.surgery.products import Product, find_product

__all__ = ["ActivationCodes", "ActivationScheme", "Pair", "Plan", "plan_pairs", "scale_of"]


class ActivationCodes(Enum):
    """Codes of activations, each with the rule for affine and for mirrored ranges."""

    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"

    @property
    def rule(self) -> Rule:
        """The rule for ranges whose ends are free."""
        return _AFFINE[self]

    @property
    def mirrored(self) -> Rule:
        """The rule for ranges low = -high."""
        return _MIRRORED[self]

    @property
    def signed(self) -> bool:
        """True for codes on both sides of zero."""
        return self in (ActivationCodes.INT8, ActivationCodes.INT16)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self in (ActivationCodes.UINT8, ActivationCodes.INT8) else 16

    @property
    def wide(self) -> "ActivationCodes":
        """The same with 16 bits."""
        return ActivationCodes.INT16 if self.signed else ActivationCodes.UINT16


_AFFINE = {
    ActivationCodes.UINT8: rules.ONNXRUNTIME_WEIGHT_UINT8,
    ActivationCodes.INT8: rules.ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC,
    ActivationCodes.UINT16: rules.ONNXRUNTIME_WEIGHT_UINT16,
    ActivationCodes.INT16: rules.ONNXRUNTIME_WEIGHT_INT16,
}
_MIRRORED = {
    ActivationCodes.UINT8: rules.ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC,
    ActivationCodes.INT8: rules.ONNXRUNTIME_WEIGHT_INT8,
    ActivationCodes.UINT16: rules.ONNXRUNTIME_WEIGHT_UINT16,
    ActivationCodes.INT16: rules.ONNXRUNTIME_WEIGHT_INT16,
}

# Integer kernels of convolutions give codes; those of matrix products may give floats, which
# costs no pair and loses nothing.
_NEEDS_RESULT = {"Conv", "ConvTranspose"}
# An activation that is folded into the convolution before it, when the pair comes after.
_FOLDED = {"Relu", "Clip"}
# Operators whose result has the codes of what they read.
_SAME_CODES = {
    *("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Pad"),
}
# Operators with integer kernels that join the products' codes.
_JOINING = {"Add", "Concat", "GlobalAveragePool", "AveragePool"}
# Results whose range is known without data.
_KNOWN = {"Softmax": Range(0.0, 1.0), "Sigmoid": Range(0.0, 1.0)}


@dataclass(frozen=True)
class ActivationScheme:
    """Which activation gets which codes.

    Attributes:
        default: for all that are not named.
        named: by tensor.
    """

    default: ActivationCodes
    named: Mapping[str, ActivationCodes] = field(default_factory=dict)

    def of(self, tensor: str) -> ActivationCodes:
        """Return the codes of a tensor that shares them with no other."""
        return self.named.get(tensor, self.default)


@dataclass(frozen=True)
class Pair:
    """A tensor that gets a quantize/dequantize pair.

    Attributes:
        tensor: its name.
        same_as: the tensor whose codes it shares (a MaxPool's input), "" for its own.
        known: its range, where the operator settles it.
    """

    tensor: str
    same_as: str = ""
    known: Range | None = None


@dataclass
class Plan:
    """What a static quantization will do to one graph: the model's own or one inside a node.

    Attributes:
        scope: the graph.
        products: the products to quantize.
        pairs: the tensors that get pairs, by name.
        chained: those that integer kernels make: every reader takes the codes' value, since
            the kernel gives no other.
        results: by product, the tensor with the codes that its kernel makes.
    """

    scope: Scope
    products: list[Product] = field(default_factory=list)
    pairs: dict[str, Pair] = field(default_factory=dict)
    chained: set[str] = field(default_factory=set)
    results: dict[str, str] = field(default_factory=dict)

    def source(self, tensor: str) -> Pair:
        """Return the pair whose codes a tensor has: its own, or that of what it is made from."""
        pair = self.pairs[tensor]
        return self.source(pair.same_as) if pair.same_as else pair

    def observed(self) -> list[str]:
        """Return the tensors whose ranges must come from data."""
        return [p.tensor for p in self.pairs.values() if not p.same_as and p.known is None]


def plan_pairs(
    editor: Editor, account: Account, selection: Selection, unseen: Collection[str] = ()
) -> list[Plan]:
    """Decide which tensors get pairs, graph by graph.

    Products that were not chosen or can't be quantized are written into the account, those too
    that read a tensor of which the data showed nothing.
    """
    plans = []
    for scope in editor.scopes():
        plan = Plan(scope)
        for node in scope.graph.node:
            product = find_product(node, scope)
            if isinstance(product, str):
                if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
                    account.left.append(Left(node_name(node), node.op_type, product))
                continue
            against = selection.reason_against(node)
            if {node.input[product.activation], *node.output} & set(unseen):
                against = against or "no sample took the branch it is in"
            if against:
                account.left.append(Left(product.name, node.op_type, against))
            else:
                plan.products.append(product)
        _add_pairs(scope.graph, plan)
        plans.append(plan)
    return plans


def _add_pairs(graph: onnx.GraphProto, plan: Plan) -> None:
    readers = consumers(graph)
    makers = {name: node for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    for product in plan.products:
        _want(plan, product.node.input[product.activation], makers)
        if product.node.op_type in _NEEDS_RESULT:
            plan.results[product.name] = _behind_activation(product.node, readers, outputs)
            _want(plan, plan.results[product.name], makers)
    _join(graph, plan, makers, readers, outputs)
    for name in list(plan.pairs):
        maker = makers.get(name)
        if maker is not None and maker.op_type in _SAME_CODES and maker.input[0] in plan.pairs:
            plan.pairs[name] = Pair(name, same_as=maker.input[0])


def _want(plan: Plan, tensor: str, makers: dict[str, onnx.NodeProto]) -> None:
    maker = makers.get(tensor)
    known = _KNOWN.get(maker.op_type) if maker is not None else None
    plan.pairs.setdefault(tensor, Pair(tensor, known=known))


def _behind_activation(
    node: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]], outputs: set[str]
) -> str:
    """Return the tensor after the activation function that follows a node, or its own result."""
    result = node.output[0]
    if result not in outputs and len(readers[result]) == 1:
        follower = readers[result][0]
        if follower.op_type in _FOLDED and follower.input[0] == result:
            return follower.output[0]
    return result


def _join(
    graph: onnx.GraphProto,
    plan: Plan,
    makers: dict[str, onnx.NodeProto],
    readers: dict[str, list[onnx.NodeProto]],
    outputs: set[str],
) -> None:
    """Give pairs to results of Add, Concat and pools all of whose inputs have codes.

    Only where a convolution made them or reads on: a matrix product's floats stay floats.
    """
    chained = plan.chained
    chained |= set(plan.results.values())
    for node in graph.node:
        if (
            node.op_type in _SAME_CODES
            and node.input
            and node.input[0] in chained & plan.pairs.keys()
        ):
            plan.pairs.setdefault(node.output[0], Pair(node.output[0], same_as=node.input[0]))
            chained.add(node.output[0])
        if node.op_type not in _JOINING:
            continue
        if all(name in plan.pairs for name in node.input) and set(node.input) & chained:
            result = _behind_activation(node, readers, outputs)
            _want(plan, result, makers)
            chained.add(result)


def scale_of(found: Range, codes: ActivationCodes) -> tuple[np.float32, np.generic]:
    """Return scale and zero point of an activation's range, by ONNX Runtime's rule."""
    mirrored = found.low == -found.high and found.high > 0
    rule = codes.mirrored if mirrored else codes.rule
    # Two numbers: the exact arithmetic is at its end before a compiled loop is loaded.
    grid = choose_grid([float(np.float32(found.low)), float(np.float32(found.high))], rule)
    return np.float32(grid.scale), np.dtype(codes.value).type(grid.zero_point)
