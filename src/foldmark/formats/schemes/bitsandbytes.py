"""bitsandbytes' layouts: int8 rows, and 4-bit blocks with plain or nested scales.

int8:
    X.weight int8 (out, in)   X.SCB float32 (out,): the row's largest magnitude
    value = code * SCB / 127

NF4 and FP4:
    X.weight uint8 (n / 2, 1)   two codes a byte, the first in the HIGH nibble
    X.weight.absmax float32 (blocks,), or nested: uint8 codes of
        nested_quant_map[absmax] * nested_absmax[block // 256] + nested_offset
    X.weight.quant_map float32 (16,)   the real number of each code
    X.weight.quant_state.bitsandbytes__nf4   JSON: shape, blocksize, nested_offset ...
"""

import json
import math
from dataclasses import dataclass

import numpy as np

from foldmark.errors import HostileFile
from foldmark.formats.entry import Entry
from foldmark.formats.schemes.shelf import Shelf, demand, spans
from foldmark.formats.stored import Part, Run, StoredTensor
from foldmark.formats.values import Array, Layout, PackedCodes, Values

__all__ = ["claim"]

_STATE = ".quant_state.bitsandbytes__"
_KINDS = {"nf4": "nf4", "fp4": "fp4_bnb"}
_LARGEST_BLOCK = 1 << 31
_LONGEST_STATE = 1 << 16


def claim(shelf: Shelf) -> list[StoredTensor]:
    """Take every weight of either form."""
    return _claim_rows(shelf) + _claim_blocks(shelf)


def _claim_rows(shelf: Shelf) -> list[StoredTensor]:
    found = []
    for module in list(shelf.modules(".SCB")):
        weight, largest = shelf.get(f"{module}.weight"), shelf.get(f"{module}.SCB")
        if weight is None or largest is None or weight.number_format != "int8":
            continue
        demand(largest, len(weight.shape) == 2 and largest.shape == weight.shape[:1], "one a row")
        found.append(_rows(weight, largest, shelf.get(f"{module}.weight_format")))
        shelf.take(*(f"{module}.{part}" for part in ("weight", "SCB", "weight_format")))
    return found


def _rows(weight: Entry, largest: Entry, form: Entry | None) -> StoredTensor:
    block = (1, max(1, weight.shape[1]))

    def read(first: int, last: int) -> Values:
        scale = largest.rows(first, last).astype(np.float32) / np.float32(127)
        return Values(weight.rows(first, last), block, scale[:, None])

    layout = Layout("int8", block, largest.number_format, "none", "bitsandbytes int8")
    parts = {Part.CODES: weight.nbytes, Part.SCALES: largest.nbytes}
    if form is not None:
        parts[Part.INTEGERS] = form.nbytes
    return StoredTensor(
        weight.name, weight.shape, layout, spans(weight, largest, form), parts, read
    )


@dataclass(frozen=True)
class _State:
    """What the JSON beside a 4-bit weight says."""

    shape: tuple[int, ...]
    block: int
    nested_block: int
    nested_offset: float


def _claim_blocks(shelf: Shelf) -> list[StoredTensor]:
    found = []
    for kind, number_format in _KINDS.items():
        for weight_name in list(shelf.modules(_STATE + kind)):
            names = [f"{weight_name}.{part}" for part in _PARTS]
            weight, state = shelf.get(weight_name), shelf.get(f"{weight_name}{_STATE}{kind}")
            absmax, table = shelf.get(names[0]), shelf.get(names[1])
            if weight is None or state is None or absmax is None or table is None:
                continue
            nested = [entry for entry in map(shelf.get, names[2:]) if entry is not None]
            arrays = _Arrays(weight, absmax, table, nested, state)
            found.append(_blocks(arrays, _read_state(state), number_format))
            shelf.take(weight_name, state.name, *names)
    return found


_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


@dataclass(frozen=True, eq=False)
class _Arrays:
    weight: Entry
    absmax: Entry
    table: Entry
    nested: list[Entry]
    state: Entry


def _read_state(entry: Entry) -> _State:
    demand(entry, entry.number_format == "uint8" and entry.nbytes < _LONGEST_STATE, "short JSON")
    try:
        stated = dict(json.loads(entry.load().tobytes()))
        return _State(
            tuple(int(n) for n in stated["shape"]),
            int(stated["blocksize"]),
            int(stated.get("nested_blocksize", 256)),
            float(stated.get("nested_offset", 0.0)),
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        AttributeError,
        OverflowError,
    ) as fault:
        raise HostileFile(
            f"tensor {entry.name!r} is not the JSON that bitsandbytes writes",
            where=str(entry.source.path),
        ) from fault


def _blocks(arrays: _Arrays, state: _State, number_format: str) -> StoredTensor:
    weight, absmax, table = arrays.weight, arrays.absmax, arrays.table
    elements = math.prod(state.shape)
    fits = weight.number_format == "uint8" and weight.elements == -(-elements // 2)
    demand(weight, fits and min(state.shape, default=0) > 0, f"{elements} codes of 4 bits")
    demand(table, table.elements == 16 and table.number_format == "float32", "16 numbers")
    fits = state.block > 0 and absmax.elements == -(-elements // state.block)
    demand(absmax, fits, f"one number for each block of {state.block}")
    _check_nested(arrays, state)
    shape = state.shape if state.shape[-1] % state.block == 0 else (elements,)
    across = math.prod(shape[1:])
    step = 1 if across % state.block == 0 else state.block

    def values(start: int, stop: int, rows: tuple[int, ...]) -> Values:
        raw = weight.read(start // 2, -(-stop // 2))
        scale = _largest(arrays, state, start // state.block, -(-stop // state.block))
        per_block = (*rows[:-1], -(-rows[-1] // state.block))
        return Values(
            _codes(raw, rows, start % 2),
            (*(1 for _ in rows[:-1]), state.block),
            scale.reshape(per_block),
            codebook=table.load().reshape(-1),
        )

    def read(first: int, last: int) -> Values:
        return values(first * across, last * across, (last - first, *shape[1:]))

    def run(first: int, last: int) -> Values:
        return values(first, last, (last - first,))

    nested = bool(arrays.nested)
    layout = Layout(
        number_format,
        (*(1 for _ in shape[:-1]), state.block),
        "8 bits of a float32" if nested else absmax.number_format,
        "none",
        f"bitsandbytes {'nested ' if nested else ''}{number_format[:3].upper()}",
    )
    scales = absmax.nbytes + sum(entry.nbytes for entry in arrays.nested)
    parts = {
        Part.CODES: weight.nbytes,
        Part.SCALES: scales,
        Part.FLOATS: table.nbytes,
        Part.INTEGERS: arrays.state.nbytes,
    }
    return StoredTensor(
        weight.name,
        shape,
        layout,
        spans(weight, absmax, table, arrays.state, *arrays.nested),
        parts,
        read,
        walk_step=step,
        run=Run(state.block, run),
    )


def _codes(raw: Array, shape: tuple[int, ...], skipped: int) -> Array | PackedCodes:
    """Take two codes out of each byte, the high one first; they may stay where they are.

    skipped: 1 where the first byte's high code is left out, else 0
    """
    count = math.prod(shape)

    def unpack() -> Array:
        fields = np.stack([raw >> 4, raw & 15], axis=-1).reshape(-1)
        return fields[skipped : skipped + count].reshape(shape)

    if skipped or count % 2:
        return unpack()
    return PackedCodes(raw.reshape(1, -1), ((0, raw.size, 4, 1),), unpack)


def _check_nested(arrays: _Arrays, state: _State) -> None:
    if not arrays.nested:
        demand(arrays.absmax, arrays.absmax.number_format == "float32", "float32")
        return
    demand(arrays.absmax, arrays.absmax.number_format == "uint8", "uint8 codes")
    demand(arrays.absmax, len(arrays.nested) == 2, "nested_absmax and nested_quant_map beside it")
    outer, table = arrays.nested
    fits = 0 < state.nested_block < _LARGEST_BLOCK and outer.elements == -(
        -arrays.absmax.elements // state.nested_block
    )
    demand(outer, fits and outer.number_format == "float32", "one float32 for each nested block")
    demand(table, table.elements == 256 and table.number_format == "float32", "256 numbers")


def _largest(arrays: _Arrays, state: _State, first: int, last: int) -> Array:
    """Return the largest magnitude of blocks first..last, float32."""
    stored = arrays.absmax.read(first, last)
    if not arrays.nested:
        return stored
    outer, table = arrays.nested
    block = np.arange(first, last) // state.nested_block
    numbers = table.load().reshape(-1)[stored] * outer.load().reshape(-1)[block]
    return (numbers + np.float32(state.nested_offset)).astype(np.float32)
