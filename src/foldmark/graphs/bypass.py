"""Leave chosen activations of a QDQ model in float: their pairs are led around."""

from collections.abc import Iterable

import onnx

from foldmark.errors import NotSupported
from foldmark.graphs.sites import Site, SiteKind

__all__ = ["left_in_float"]


def left_in_float(model: onnx.ModelProto, sites: Iterable[Site]) -> onnx.ModelProto:
    """Return a copy of a QDQ model whose given activations are no longer quantized.

    model   quantize/dequantize pairs around float operators
    sites   activations (keys and values included) of that model

    Whatever read a site's dequantized value reads the float value before it.

    Raises:
        NotSupported: a weight or bias, or a site that is not a pair in the model itself.
    """
    around = {site.after: site.before for site in sites if _is_a_pair(model, site)}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        for place, name in enumerate(node.input):
            if name in around:
                node.input[place] = around[name]
    return changed


def _is_a_pair(model: onnx.ModelProto, site: Site) -> bool:
    written = {name for node in model.graph.node for name in node.output}
    given = {value.name for value in model.graph.input}
    if site.kind in (SiteKind.WEIGHT, SiteKind.BIAS) or not (
        site.after in written and site.before in written | given
    ):
        raise NotSupported(
            "not an activation between two operators of a QDQ model, so it can't be led around",
            where=site.name,
        )
    return True
