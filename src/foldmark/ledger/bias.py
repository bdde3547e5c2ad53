"""Biases whose scale is not that of the product they are added to."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from foldmark.graphs.sites import QuantizedGraph, Site, SiteKind

__all__ = ["bias_ratios"]

_WITH_BIAS = ("Conv", "ConvTranspose", "Gemm")
# What rounding the three scales to float32 may leave, and more.
_OFF = 1e-3


def bias_ratios(graph: QuantizedGraph) -> Mapping[str, float]:
    """Return bias site -> bias_scale / (s_x * s_w), of its worst channel, where that is not 1.

    Integer kernels add the bias to the integer product as it is, in steps of s_x * s_w.
    """
    sites = {site.after: site for site in graph.sites}
    found = {}
    for node in graph.skeleton.graph.node:
        if node.op_type not in _WITH_BIAS or len(node.input) < 3:
            continue
        product = [sites.get(name) for name in node.input[:2]]
        bias = sites.get(node.input[2])
        if bias is None or bias.kind is not SiteKind.BIAS:
            continue
        x, w, b = (_scale(site) for site in (*product, bias))
        if x is None or w is None or b is None or x.size > 1:
            continue
        if len({w.size, b.size} - {1}) > 1 or not ((x * w > 0).all() and (b > 0).all()):
            continue
        ratio = b / (x * w)
        worst = float(ratio.flat[np.abs(np.log(ratio)).argmax()])
        if abs(worst - 1) > _OFF:
            found[bias.name] = worst
    return found


def _scale(site: Site | None) -> NDArray[np.float64] | None:
    if site is None or site.encoding.scale is None:
        return None
    return site.encoding.scale.astype(np.float64).reshape(-1)
