"""Scales of activations that stand beside weights.

compressed-tensors (and float8 checkpoints), where they are static:
    X.input_scale, X.output_scale, X.q_scale, X.k_scale, X.v_scale   one, or one a channel
    X.input_zero_point, ...                                          where codes are not symmetric
    X.input_global_scale                                             the outer scale of NVFP4
and where they are chosen at run time, in the settings beside the file:
    config_groups: {name: {targets: [...], input_activations: {num_bits, type, dynamic: true}}}

PyTorch's quantized modules:
    X.scale, X.zero_point (int64)                                    of the module's output
"""

from collections.abc import Iterator

import numpy as np

from foldmark.formats.activations import StoredActivation
from foldmark.formats.entry import Entry
from foldmark.formats.schemes.shelf import Shelf

__all__ = ["activations_on"]

_VALUES = ("input", "output", "q", "k", "v", "input_global")
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_CODES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")
# No activation has more channels.
_MOST = 1 << 20


def activations_on(shelf: Shelf) -> tuple[StoredActivation, ...]:
    """Return the activations whose scales stand on the shelf, and those of the settings.

    Args:
        shelf: before any scheme has taken its arrays.
    """
    found = [each for name in shelf.entries for each in _stored(shelf, name)]
    return (*found, *_at_run_time(shelf))


def _stored(shelf: Shelf, name: str) -> Iterator[StoredActivation]:
    scale, value = shelf.entries[name], name.removesuffix("_scale")
    if scale.number_format not in _FLOATS or not 0 < scale.elements <= _MOST:
        return
    module, _, kind = value.rpartition(".")
    if value != name and kind in _VALUES:
        zero = shelf.get(f"{value}_zero_point")
        yield _activation(value, _format(shelf, module, zero), scale, zero)
    elif kind == "scale" and scale.elements == 1:
        zero = shelf.get(f"{module}.zero_point")
        packed = any(shelf.get(f"{module}.{codes}") for codes in ("qweight", "weight_q"))
        if zero is not None and zero.number_format == "int64" and not packed:
            yield _activation(f"{module}.output", "", scale, zero)


def _activation(
    name: str, number_format: str, scale: Entry, zero: Entry | None
) -> StoredActivation:
    zeros = None
    if zero is not None and zero.elements in (1, scale.elements):
        zeros = zero.load().astype(np.float32).reshape(-1)
    numbers = scale.load().astype(np.float32).reshape(-1)
    kept = zeros if zeros is not None and zeros.any() else None
    return StoredActivation(name, number_format, numbers, kept)


def _format(shelf: Shelf, module: str, zero: Entry | None) -> str:
    """Return what codes are: the zero point's type, or the weight's, which is read beside them."""
    beside = zero or shelf.get(f"{module}.weight")
    stated = "" if beside is None else beside.number_format
    return stated if stated in _CODES else ""


def _at_run_time(shelf: Shelf) -> Iterator[StoredActivation]:
    groups = shelf.config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        stated = group.get("input_activations") if isinstance(group, dict) else None
        if isinstance(stated, dict) and stated.get("dynamic") is True:
            targets = group.get("targets")
            names = [str(n) for n in targets] if isinstance(targets, list) else []
            number_format = f"{stated.get('type', '')}{stated.get('num_bits', '')}"
            yield StoredActivation(f"inputs of {', '.join(names)}", number_format)
