"""What the axes of a site's tensor are: sample, token, head, channel, row, column."""

from foldmark.graphs.sites import Site, SiteKind

__all__ = ["axis_names", "channel_axis"]

_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
_PLANES = (
    *_CONVOLUTIONS,
    "AveragePool",
    "BatchNormalization",
    "GlobalAveragePool",
    "InstanceNormalization",
    "MaxPool",
    "Resize",
)
_ATTENTION = ("Gemm", "MatMul", "MatMulInteger", "QGemm", "QLinearMatMul", "Softmax")
_ACTIVATIONS: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("sample",),
    2: ("sample", "channel"),
    3: ("sample", "token", "channel"),
    4: ("sample", "channel", "height", "width"),
}


def axis_names(site: Site, rank: int) -> tuple[str, ...]:
    """Return a name per axis; "sample" for the first axis of activations.

    Weights are named by their operator: a MatMul's (row, column), a convolution's (channel out,
    channel in, height, width), a table's (row, column).
    """
    if site.kind in (SiteKind.WEIGHT, SiteKind.BIAS):
        return _weight_names(site, rank)
    if rank == 3 and site.operator in _PLANES:
        return ("sample", "channel", "position")
    if rank == 4 and site.operator in _ATTENTION:
        return ("sample", "head", "token", "channel")
    return _ACTIVATIONS.get(rank, ("sample", "channel", *(f"axis {i}" for i in range(2, rank))))


def channel_axis(site: Site, rank: int) -> int | None:
    """Return the axis whose slices share a fate: a channel of activations, a scale's row."""
    if rank == 0:
        return None
    if site.encoding.axis is not None:
        return site.encoding.axis % rank
    if site.kind in (SiteKind.WEIGHT, SiteKind.BIAS):
        return rank - 1 if site.operator == "MatMul" else 0
    names = axis_names(site, rank)
    return names.index("channel") if "channel" in names else None


def _weight_names(site: Site, rank: int) -> tuple[str, ...]:
    if rank == 1:
        return ("channel",)
    if rank == 2:
        return ("row", "column")
    if site.operator in _CONVOLUTIONS and rank >= 3:
        return ("output channel", "input channel", *("height", "width", "depth")[: rank - 2])
    return tuple(f"axis {axis}" for axis in range(rank))
