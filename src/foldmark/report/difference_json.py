"""A comparison as a JSON document, schema foldmark.diff/1: fields may be added, never renamed."""

from foldmark.compare.diff import Diff
from foldmark.compare.fit import Fit
from foldmark.compare.prices import Prices
from foldmark.compare.tensor_diff import TensorDiff
from foldmark.report.difference_activations import activations_to_json

__all__ = ["to_json"]

_SCHEMA = "foldmark.diff/1"


def to_json(diff: Diff, prices: Prices | None = None) -> dict[str, object]:
    """Return plain dictionaries, lists, strings and numbers."""
    return {
        "schema": _SCHEMA,
        "left": str(diff.left.path),
        "right": str(diff.right.path),
        "float": None if diff.original is None else str(diff.original.path),
        "tensors": [
            _tensor(tensor) | {"module": diff.modules.get(tensor.match.left.name, "")}
            for tensor in diff.tensors
        ],
        "left_only": [tensor.name for tensor in diff.left_only],
        "right_only": [tensor.name for tensor in diff.right_only],
        "without_original": list(diff.without_original),
        "rules": {
            side: [
                {
                    "packing": packing,
                    "number_format": number_format,
                    "granularity": granularity,
                    "consistent_with": list(agreement.names),
                    "weights": [agreement.agree, agreement.total],
                }
                for (packing, number_format, granularity, _), agreement in agreed.items()
            ]
            for side, agreed in zip(("left", "right"), diff.agreed, strict=True)
        },
        "activations": activations_to_json(diff.activations),
        "prices": None if prices is None else _prices(prices),
    }


def _prices(prices: Prices) -> dict[str, object]:
    return {
        "metric": prices.metric.title,
        "outputs": list(prices.outputs),
        "left": prices.left,
        "right": prices.right,
        "difference": prices.difference,
        "samples": prices.samples,
        "data": prices.data,
        "random": prices.is_random,
        "decisions": [
            {
                "decision": price.unit.name,
                "left": price.unit.left,
                "right": price.unit.right,
                "weights": price.weights,
                "predicted": price.predicted,
                "measured": price.measured,
                "into_left": price.into_left,
                "out_of_right": price.out_of_right,
                "share": price.share,
            }
            for price in prices.prices
        ],
        "together": prices.together,
        "kernel": prices.kernel,
        "activations": [
            {
                "name": each.name,
                "left": each.left,
                "right": each.right,
                "amount": each.amount,
                "predicted": each.predicted,
                "measured": each.measured,
            }
            for each in prices.activations
        ],
        "notes": list(prices.notes),
    }


def _tensor(tensor: TensorDiff) -> dict[str, object]:
    codes = tensor.codes
    return {
        "left": tensor.match.left.name,
        "right": [other.name for other in tensor.match.right],
        "matched_by": tensor.match.evidence,
        "original_by": tensor.evidence,
        "distance": tensor.distance,
        "left_error": tensor.left_error,
        "right_error": tensor.right_error,
        "codes": None
        if codes is None
        else {
            "differ": codes.count,
            "total": codes.total,
            "first": None if codes.index is None else list(codes.index),
            "left": codes.left,
            "right": codes.right,
            "weight": codes.weight,
            "left_exact": codes.left_exact,
            "right_exact": codes.right_exact,
        },
        "fields": [
            {
                "field": field.field,
                "left": field.left,
                "right": field.right,
                "alternatives": list(field.alternatives),
                "evidence": field.evidence,
            }
            for field in tensor.fields
        ],
        "left_rule": _rule(tensor.left),
        "right_rule": _rule(tensor.right),
    }


def _rule(fit: Fit | None) -> dict[str, object] | None:
    if fit is None or fit.inference is None:
        return None
    inference = fit.inference
    return {
        "consistent_with": list(inference.names),
        "exact": inference.is_exact,
        "scales": [inference.scale.agree, inference.scale.total],
        "zero_points": [inference.zero_point.agree, inference.zero_point.total],
        "codes": [inference.affine.agree, inference.affine.total],
        "method": None if fit.residuals is None else fit.residuals.suspect.name.lower(),
        "residuals": None if fit.residuals is None else fit.residuals.sentence,
        "range": fit.shrunk,
    }
