"""What two graphs quantize beside their weights, site by site."""

from collections.abc import Mapping

import numpy as np

from foldmark import rules
from foldmark.compare.runnable import Runnable
from foldmark.errors import FoldmarkError
from foldmark.exact.rule import Rule
from foldmark.formats.values import Array
from foldmark.graphs.sites import Site, SiteKind
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.group import dequantize_group
from foldmark.ledger.models import is_constant
from foldmark.ledger.treatments import refolded

__all__ = ["acting", "activation_words", "alike", "encoded", "kinds"]


def acting(runnable: Runnable) -> dict[str, Site]:
    """Return the sites that are chosen by the graph, not by a weight: all but weights."""
    return {n: site for n, site in runnable.sites.items() if site.kind is not SiteKind.WEIGHT}


def alike(one: Site, other: Site) -> bool:
    """Say whether two sites represent their tensor alike."""
    a, b = one.encoding, other.encoding
    if (a.number_format, a.axis, a.block_size) != (b.number_format, b.axis, b.block_size):
        return False
    if is_constant(one):  # a bias: its scale follows from its neighbours'
        return True
    return _same(a.scale, b.scale) and _same(a.zero_point, b.zero_point)


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return (one is None or not np.any(one)) and (other is None or not np.any(other))
    return bool(np.array_equal(one, other))


def encoded(before: Array, site: Site) -> Array:
    """Return an activation as another site of it would leave it."""
    if is_constant(site):
        return before
    if not site.encoding.is_dynamic:
        try:
            return refolded(before, site.encoding)
        except (KeyError, FoldmarkError):
            return before
    rule = rules.ONNXRUNTIME_DYNAMIC_UINT8
    assert isinstance(rule, Rule)
    group = quantize_array(before.reshape(1, -1), (1, before.size), rule)
    numbers = dequantize_group(group, rule, block=(1, before.size))
    return np.asarray(numbers, np.float32).reshape(before.shape)


def activation_words(site: Site) -> str:
    """Say how a site represents its values."""
    encoding = site.encoding
    if encoding.is_dynamic:
        return f"{encoding.number_format}, scale from the data"
    if encoding.scale is None or encoding.scale.size != 1:
        return encoding.number_format
    zero = 0 if encoding.zero_point is None else int(encoding.zero_point.reshape(-1)[0])
    scale = float(encoding.scale.reshape(-1)[0])
    return f"{encoding.number_format}, scale {scale:.4g}, zero point {zero}"


def kinds(sites: Mapping[str, Site]) -> str:
    """Say in words what a graph quantizes beside its weights."""
    counts: dict[str, int] = {}
    for site in sites.values():
        form = site.encoding.number_format
        kind = f"dynamic {form}" if site.encoding.is_dynamic else f"static {form}"
        counts[kind if not is_constant(site) else f"{form} biases"] = (
            counts.get(kind if not is_constant(site) else f"{form} biases", 0) + 1
        )
    return ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "float"
