"""Encodings in words."""

import numpy as np

from foldmark.graphs.sites import Encoding

__all__ = ["scheme_name", "scheme_rule"]


def scheme_name(encoding: Encoding) -> str:
    """Return format and granularity: "int8 per channel (axis 1)"."""
    if encoding.block_size is not None:
        return f"{encoding.number_format} per block of {encoding.block_size} (axis {encoding.axis})"
    if encoding.axis is not None:
        return f"{encoding.number_format} per channel (axis {encoding.axis})"
    return f"{encoding.number_format} per tensor"


def scheme_rule(encoding: Encoding) -> str:
    """Return how codes are made: "symmetric, scale fixed", "affine, scale from the data"."""
    if encoding.number_format in ("float16", "bfloat16"):
        return "cast"
    if encoding.is_dynamic:
        return "affine, scale chosen at run time"
    if encoding.number_format.startswith("float"):
        return "scaled cast"
    zero = 0 if encoding.zero_point is None else encoding.zero_point.astype(np.int64)
    middle = 0
    if encoding.number_format.startswith("u"):
        middle = 1 << int(encoding.number_format.removeprefix("uint")) - 1
    return "symmetric" if np.all(zero == middle) else "affine"
