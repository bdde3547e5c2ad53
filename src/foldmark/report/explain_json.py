"""The report of `explain` for machines: schema "foldmark.explain/1"."""

import math
from typing import Any

import numpy as np

from foldmark.ledger.entries import Entry
from foldmark.ledger.findings import Findings
from foldmark.ledger.flips import LabelReport
from foldmark.report.explain_text import verdict
from foldmark.report.schemes import scheme_name, scheme_rule
from foldmark.report.words import site_titles

__all__ = ["SCHEMA", "to_json"]

SCHEMA = "foldmark.explain/1"


def to_json(report: Findings) -> dict[str, Any]:
    """Return the report as plain dicts, lists, strings and finite numbers (null for others)."""
    metric, closure, cost = report.metric, report.closure, report.cost
    titles = site_titles(entry.site for entry in report.entries)
    plain: dict[str, Any] = _plain(
        {
            "schema": SCHEMA,
            "verdict": verdict(report),
            "metric": {
                "name": metric.name,
                "float": metric.exact,
                "quantized": metric.quantized,
                "change": metric.change,
                "outputs": metric.outputs,
                "reason": metric.reason,
            },
            "closure": {
                "sites": closure.sites,
                "graph": closure.graph,
                "kernel": closure.kernel,
                "quadrature": closure.quadrature,
                "total": closure.total,
                "unsigned": closure.unsigned,
                "relative_error": closure.relative_error,
            },
            "cost": {
                "seconds": cost.seconds,
                "forward_seconds": cost.forward_seconds,
                "forward_equivalents": cost.forward_equivalents,
                "nodes": cost.nodes,
                "samples": cost.samples,
                "sites": cost.sites,
            },
            "data": {"source": report.data, "random": report.is_random},
            "entries": [_entry(entry, titles[entry.site.name]) for entry in report.entries],
            "layers": [vars(each) for each in report.layers],
            "kinds": [vars(each) for each in report.kinds],
            "operators": [vars(each) for each in report.operators],
            "fixes": [
                {
                    "sites": fix.sites,
                    "change": fix.change,
                    "predicted": fix.predicted,
                    "measured": fix.measured,
                    "share": fix.share,
                    "moved": fix.moved,
                    "samples": fix.samples,
                }
                for fix in report.fixes
            ],
            "softmaxes": [
                {
                    "name": each.name,
                    "layer": each.layer,
                    "gain": each.gain,
                    "scores": each.scores,
                    "probabilities": each.probabilities,
                    "gains": each.gains,
                }
                for each in report.softmaxes
            ],
            "labels": _labels(report.labels),
            "kernels": [vars(each) for each in report.kernels],
            "unmatched": [vars(each) for each in report.unmatched],
            "ranking": {"first_holds": report.first_holds},
            "replay_error": report.replay_error,
            "notes": report.notes,
        }
    )
    return plain


def _entry(entry: Entry, title: str) -> dict[str, Any]:
    facts, site, setter = entry.facts, entry.site, entry.facts.setter
    return {
        "site": site.name,
        "title": title,
        "kind": site.kind.value,
        "operator": site.operator,
        "layer": site.layer,
        "amount": entry.amount,
        "share": entry.share,
        "interval": entry.interval,
        "causes": {cause.value: amount for cause, amount in entry.causes.items()},
        "scheme": scheme_name(site.encoding),
        "rule": scheme_rule(site.encoding),
        "scale_setter": None
        if setter is None
        else {
            "index": setter.index,
            "value": setter.value,
            "others": setter.codes_of_rest,
            "codes": setter.codes,
            "channel": setter.channel,
            "axis": setter.axis,
            "channels": setter.channels,
            "scale": setter.scale,
            "scale_without": setter.scale_without,
            "alike": setter.alike,
            "rest_below": setter.rest_below,
        },
        "groups": [vars(group) for group in entry.groups],
        "clipped": facts.clipped,
        "relative_error": facts.relative_error,
        "relative_error_smallest": facts.relative_error_smallest,
        "seen": facts.seen,
        "covered": facts.covered,
        "bias_ratio": entry.bias_ratio,
        "born": None if entry.origin is None else entry.origin.born,
        "arrived": None if entry.origin is None else entry.origin.arrived,
    }


def _labels(labels: LabelReport | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    return {
        "samples": labels.samples,
        "accuracy_float": labels.accuracy_exact,
        "accuracy_quantized": labels.accuracy_quantized,
        "flips": [
            {
                "sample": flip.sample,
                "row": flip.row,
                "label": flip.label,
                "float": flip.exact,
                "quantized": flip.quantized,
                "margin_float": flip.margin_exact,
                "margin_quantized": flip.margin_quantized,
                "losses": [vars(loss) for loss in flip.losses],
            }
            for flip in labels.flips
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, np.integer):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
