"""com.microsoft's Attention and QAttention, and the quantized embedding before them."""

import math

import numpy as np
import onnx

from foldmark.errors import OperatorNotSupported
from foldmark.graphs.reading.fused import Steps, write_embedding
from foldmark.graphs.reading.qlinear import operand
from foldmark.graphs.reading.shapes import rank_of
from foldmark.graphs.reading.workspace import Workspace

__all__ = ["attention", "q_attention", "q_embed_layer_normalization"]


def attention(space: Workspace, node: onnx.NodeProto) -> None:
    """Read Attention: input, weights, bias, mask_index, past, attention_bias."""
    steps = Steps(space, node)
    _refuse(steps, 4)
    x, weights, bias, mask = (steps.input(place) for place in range(4))
    _attend(steps, x, weights, bias=bias, mask=mask, scores_bias=steps.input(5))


def q_attention(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QAttention: Attention whose input and weights are codes.

    input, weight, bias, input_scale, weight_scale, mask_index, two zero points, past
    """
    steps = Steps(space, node)
    _refuse(steps, 8)
    names = [*node.input, *[""] * 9][:9]
    x = operand(space, (names[0], names[3], names[6]))
    weights = operand(space, (names[1], names[4], names[7]), 1)
    _attend(steps, x, weights, bias=steps.input(2), mask=steps.input(5))


def _refuse(steps: Steps, past: int) -> None:
    reasons = {
        "with a past": steps.input(past) or steps.output(1),
        "with rotary embedding": steps.given.get("do_rotary"),
    }
    for reason, applies in reasons.items():
        if applies:
            raise _not_read(steps, reason)


def _not_read(steps: Steps, reason: str) -> OperatorNotSupported:
    return OperatorNotSupported(
        f"{steps.node.op_type} {reason}",
        where=f"node {steps.node.name or steps.output()!r}",
    )


def _attend(
    steps: Steps, x: str, weights: str, *, bias: str, mask: str, scores_bias: str = ""
) -> None:
    """Write softmax(q k^T scale + mask) v, the heads beside each other.

    x (batch, sequence, width), weights (width, q + k + v)
    """
    heads = int(steps.given["num_heads"])
    sizes = _hidden_sizes(steps, weights)
    projected = steps.do("MatMul", x, weights)
    if bias:
        projected = steps.do("Add", projected, bias)
    q, k, v = _split(steps, projected, sizes)
    q, k, v = (
        steps.do(
            "Transpose", steps.do("Reshape", part, steps.integers([0, 0, heads, -1])), perm=order
        )
        for part, order in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    scale = float(steps.given.get("scale", 0.0)) or 1.0 / math.sqrt(sizes[0] // heads)
    scores = steps.do("Mul", steps.do("MatMul", q, k), steps.number(scale))
    for term in (_mask_term(steps, mask, x), _causal_term(steps, x), scores_bias):
        if term:
            scores = steps.do("Add", scores, term)
    mixed = steps.do("MatMul", steps.do("Softmax", scores, axis=-1), v)
    turned = steps.do("Transpose", mixed, perm=[0, 2, 1, 3])
    steps.do("Reshape", turned, steps.integers([0, 0, -1]), into=steps.output())


def _hidden_sizes(steps: Steps, weights: str) -> list[int]:
    given = steps.given.get("qkv_hidden_sizes")
    if given:
        return [int(size) for size in given]
    tensor = steps.space.constants.get(weights)
    if tensor is None:
        raise _not_read(steps, "whose weights are computed at run time")
    return [tensor.dims[1] // 3] * 3


def _split(steps: Steps, projected: str, sizes: list[int]) -> list[str]:
    names = [steps.space.fresh(f"{steps.output()}_{part}") for part in ("query", "key", "value")]
    steps.space.write(
        onnx.helper.make_node(
            "Split", [projected, steps.integers(sizes)], names, name=f"{names[0]}_split", axis=-1
        )
    )
    return names


def _filtered(steps: Steps, kept: str, value: float) -> str:
    """Return 0 where kept is true and a value elsewhere."""
    return steps.do("Where", kept, steps.number(0.0), steps.number(value))


def _mask_term(steps: Steps, mask: str, x: str) -> str:
    """Return what is added to the scores for a mask.

    (batch, sequence) or (batch, sequence, sequence)    1 to keep, 0 to leave out
    (batch,)                                            how many to keep
    """
    if not mask:
        return ""
    rank = rank_of(steps.space, mask)
    if rank == 1:
        lengths = steps.do("Unsqueeze", mask, steps.integers([1]))
        lengths = steps.do("Cast", lengths, to=int(onnx.TensorProto.INT64))
        kept, rank = steps.do("Less", _positions(steps, x), lengths), 2
    elif rank in (2, 3):
        kept = steps.do("Cast", mask, to=int(onnx.TensorProto.BOOL))
    else:
        raise _not_read(steps, f"with a mask of {'unknown rank' if rank is None else rank} axes")
    wide = steps.do("Unsqueeze", kept, steps.integers([1, 2][: 4 - rank]))
    return _filtered(steps, wide, float(steps.given.get("mask_filter_value", -10000.0)))


def _positions(steps: Steps, x: str) -> str:
    """Return 0 .. sequence length - 1."""
    zero, one = (steps.space.constant(np.asarray(i, np.int64), "position") for i in (0, 1))
    return steps.do("Range", zero, steps.do("Gather", steps.do("Shape", x), one), one)


def _causal_term(steps: Steps, x: str) -> str:
    if not steps.given.get("unidirectional"):
        return ""
    column = steps.do("Unsqueeze", _positions(steps, x), steps.integers([1]))
    row = steps.do("Unsqueeze", _positions(steps, x), steps.integers([0]))
    # Stronger than any mask: a token whose past is masked out still does not see its future.
    lowest = float(np.finfo(np.float32).min)
    return _filtered(steps, steps.do("GreaterOrEqual", column, row), lowest)


def q_embed_layer_normalization(space: Workspace, node: onnx.NodeProto) -> None:
    """Read QEmbedLayerNormalization: five tables of codes, then their scales and zero points."""
    steps = Steps(space, node)
    names = [*node.input, *[""] * 18][:18]
    for place in range(2, 7):
        if names[place]:
            coded = (names[place], names[place + 6], names[place + 11])
            steps.inputs[place] = operand(space, coded)
    steps.inputs[8:] = []
    write_embedding(steps)
