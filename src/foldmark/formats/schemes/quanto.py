"""optimum-quanto's layouts.

8 bits (int8, float8):
    X.weight._data (out, in)   X.weight._scale (out, 1)   value = code * scale

4 and 2 bits; the weight is first reshaped to (groups, group size), its own shape is not kept:
    X.weight._data._data uint8 (ceil(groups / k), group size), k = 8 / bits: byte row r holds
        group row r in its lowest bits, row r + ceil(groups / k) in the next, and so on
    X.weight._scale (groups, 1)
    X.weight._shift (groups, 1)  float: value = code * scale - shift;
                                 integer: value = (code - shift) * scale
"""

import numpy as np

from foldmark.errors import NotSupported
from foldmark.formats.entry import Entry
from foldmark.formats.schemes.scaled import Names, scaled_tensor
from foldmark.formats.schemes.shelf import Shelf, demand, parts, spans
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Layout, Values

__all__ = ["claim"]

_BYTES = Names("._data", "._scale", packing="quanto")


def claim(shelf: Shelf) -> list[StoredTensor]:
    """Take every weight of either form."""
    found = []
    for name in list(shelf.modules("._data._data")):
        packed, scale = shelf.get(f"{name}._data._data"), shelf.get(f"{name}._scale")
        shift = shelf.get(f"{name}._shift")
        if packed is None or scale is None or shift is None:
            continue
        found.append(_packed(name, packed, scale, shift))
        shelf.take(packed.name, scale.name, shift.name)
    for name in list(shelf.modules("._data")):
        codes, scale = shelf.get(f"{name}._data"), shelf.get(f"{name}._scale")
        if codes is None or scale is None:
            continue
        found.append(scaled_tensor(name, codes, scale, None, _BYTES))
        shelf.take(codes.name, scale.name)
    return found


def _packed(name: str, packed: Entry, scale: Entry, shift: Entry) -> StoredTensor:
    if len(scale.shape) != 2 or scale.shape[1] != 1 or len(packed.shape) != 2:
        raise NotSupported(
            "not supported: quanto weights grouped along their last axis",
            where=f"{packed.source.path}: tensor {name!r}",
        )
    groups, lines = scale.shape[0], packed.shape[0]
    demand(shift, shift.shape == scale.shape, f"{list(scale.shape)}")
    per_byte = -(-groups // lines) if lines else 0
    fits = per_byte in (2, 4) and packed.number_format == "uint8" and packed.elements > 0
    demand(packed, fits, f"2 or 4 codes a byte for {groups} groups")
    bits, group_size = 8 // per_byte, packed.shape[1]
    real_shift = "float" in shift.number_format

    def read(first: int, last: int) -> Values:
        shifts = shift.rows(first, last)
        return Values(
            _group_rows(packed, bits, first, last),
            (1, group_size),
            scale.rows(first, last).astype(np.float32),
            None if real_shift else shifts.astype(np.int32),
            -shifts.astype(np.float32) if real_shift else None,
        )

    layout = Layout(
        f"uint{bits}",
        (1, group_size),
        scale.number_format,
        "real" if real_shift else "stored",
        "quanto packed rows",
    )
    return StoredTensor(
        name,
        (groups, group_size),
        layout,
        spans(packed, scale, shift),
        parts(codes=packed, scales=scale, zero_points=shift),
        read,
        note="shown as (groups, group size): the file does not keep the weight's shape",
    )


def _group_rows(packed: Entry, bits: int, first: int, last: int) -> Array:
    """Unpack group rows first..last: each lies in one bit plane of one byte row."""
    lines, mask = packed.shape[0], np.uint8((1 << bits) - 1)
    rows = []
    for plane in range(8 // bits):
        start, stop = max(first, plane * lines), min(last, (plane + 1) * lines)
        if start < stop:
            raw = packed.rows(start - plane * lines, stop - plane * lines)
            rows.append(raw >> np.uint8(plane * bits) & mask)
    return np.concatenate(rows)
