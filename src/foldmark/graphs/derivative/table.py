"""From operator to rule: the one place that lists every derivative foldmark knows."""

from foldmark.graphs.derivative import (
    arithmetic,
    convolution,
    elementwise,
    indexing,
    layout,
    matmul,
    normalization,
    pooling,
    reduction,
    resampling,
    runtime_operators,
    softmax,
)
from foldmark.graphs.derivative.single_node import OPERATORS, single_node
from foldmark.graphs.derivative.tape import Rule

__all__ = ["FLAT", "RULES", "RUNTIME_RULES", "find_rule"]

RULES: dict[str, Rule] = {
    **dict.fromkeys(OPERATORS, single_node),
    **arithmetic.RULES,
    **convolution.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **layout.RULES,
    **matmul.RULES,
    **normalization.RULES,
    **pooling.RULES,
    **reduction.RULES,
    **resampling.RULES,
    **softmax.RULES,
}

# Operators of com.microsoft that have another rule than their namesakes of ONNX.
RUNTIME_RULES: dict[str, Rule] = {**runtime_operators.RULES}

# Operators whose float outputs do not move when their inputs move a little.
FLAT = frozenset(
    {"Ceil", "ConstantOfShape", "EyeLike", "Floor", "OneHot", "Range", "Round", "Sign"}
)


def find_rule(domain: str, operator: str) -> Rule | None:
    """Return the operator's rule, None when there is none."""
    if domain == "com.microsoft" and operator in RUNTIME_RULES:
        return RUNTIME_RULES[operator]
    if domain in ("", "ai.onnx", "com.microsoft"):
        return RULES.get(operator)
    return None
