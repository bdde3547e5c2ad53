"""GPTQ's and AWQ's layouts: 32-bit words of codes, stored as (in, out).

GPTQ, bits b in 2, 3, 4, 8:
    X.qweight int32 (in b / 32, out)   fields of b bits run along `in`, low bits first
    X.qzeros  int32 (groups, out b / 32)   fields run along `out`; version 1 stores zero - 1
    X.scales  float (groups, out)
    X.g_idx   int32 (in,)   the group of each input, in activation order not neighbours

AWQ, 4 bits:
    X.qweight int32 (in, out / 8)   the eight nibbles of a word hold outputs 0 2 4 6 1 3 5 7
    X.qzeros  int32 (in / group, out / 8)   the same order
    X.scales  float16 (in / group, out)

Both are shown here as the weight that they stand for, (out, in):
    value[o, i] = scale[group(i), o] * (code[i, o] - zero[group(i), o])
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foldmark.errors import HostileFile
from foldmark.formats.bitfields import unpack_fields
from foldmark.formats.entry import Entry
from foldmark.formats.schemes.shelf import Shelf, demand, parts, spans
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array, Layout, PackedCodes, Values

__all__ = ["AWQ_ORDER", "claim"]

# the output that each nibble of an AWQ word holds, from the lowest nibble up
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BITS = (2, 3, 4, 8)


@dataclass(frozen=True, eq=False)
class _Words:
    """The arrays of one packed weight.

    Attributes:
        qweight, qzeros, scales: as the module's drawing says.
        g_idx: group of each input, None where groups are neighbours.
        bits: width of a code.
        added: what to add to a stored zero point: 1 in GPTQ's version 1, else 0.
    """

    qweight: Entry
    qzeros: Entry
    scales: Entry
    g_idx: Entry | None
    bits: int
    added: int

    @property
    def outputs(self) -> int:
        return self.scales.shape[1]

    @property
    def groups(self) -> int:
        return self.scales.shape[0]


def claim(shelf: Shelf) -> list[StoredTensor]:
    """Take every weight stored as qweight, qzeros and scales."""
    found = []
    for module in list(shelf.modules(".qweight")):
        names = [f"{module}.{part}" for part in ("qweight", "qzeros", "scales")]
        qweight, qzeros, scales = (shelf.get(name) for name in names)
        if qweight is None or qzeros is None or scales is None:
            continue
        if qweight.number_format != "int32" or len(qweight.shape) != 2:
            continue
        demand(qzeros, len(qzeros.shape) == 2 and qzeros.number_format == "int32", "int32 (g, n)")
        demand(scales, len(scales.shape) == 2 and scales.elements > 0, "a table (groups, outputs)")
        demand(qweight, qweight.elements > 0, "codes")
        demand(scales, scales.number_format in ("float16", "bfloat16", "float32"), "floats")
        if qweight.shape[1] * 8 == scales.shape[1]:
            found.append(_awq(module, _Words(qweight, qzeros, scales, None, 4, 0)))
        else:
            found.append(_gptq(module, _gptq_words(shelf, module, qweight, qzeros, scales)))
        shelf.take(*names, f"{module}.g_idx")
    return found


def _gptq_words(shelf: Shelf, module: str, qweight: Entry, qzeros: Entry, scales: Entry) -> _Words:
    groups, outputs = scales.shape
    demand(qweight, qweight.shape[1] == outputs, f"{outputs} columns")
    bits = qzeros.shape[1] * 32 // outputs
    fits = bits in _BITS and qzeros.shape == (groups, -(-outputs * bits // 32))
    demand(qzeros, fits, f"zero points of 2, 3, 4 or 8 bits for [{groups}, {outputs}]")
    inputs = qweight.shape[0] * 32 // bits
    g_idx = shelf.get(f"{module}.g_idx")
    if g_idx is None:
        demand(scales, inputs % groups == 0, f"a number of groups that divides {inputs}")
    else:
        demand(g_idx, g_idx.shape == (inputs,) and g_idx.number_format == "int32", f"[{inputs}]")
    return _Words(qweight, qzeros, scales, g_idx, bits, 0 if _is_version_two(shelf) else 1)


def _is_version_two(shelf: Shelf) -> bool:
    """Say whether the settings beside the file name GPTQ's second form; the first is the rule."""
    stated = shelf.config.get("checkpoint_format", shelf.metadata.get("checkpoint_format", "gptq"))
    return stated == "gptq_v2"


def _gptq(module: str, words: _Words) -> StoredTensor:
    inputs = words.qweight.shape[0] * 32 // words.bits
    per_word = 32 if words.bits == 3 else 32 // words.bits
    order = _activation_order(words, inputs)
    group = inputs // words.groups if inputs % words.groups == 0 else -(-inputs // words.groups)
    step = int(np.lcm(per_word, group)) if order is None else per_word

    def read(first: int, last: int) -> Values:
        codes = _columns(words, first, last)
        if order is None:
            chosen = (first // group, -(-last // group))
            return _values(words, codes, group, chosen)
        return _values(words, codes, group, (0, words.groups), order[first:last])

    name = "GPTQ v1" if words.added else "GPTQ v2"
    return _stored(module, words, (inputs, group, step, per_word), read, name)


def _columns(words: _Words, first: int, last: int) -> Array | PackedCodes:
    """Read codes (out, inputs first..last), left in their words where these hold no others."""
    bits = words.bits
    lines = words.qweight.rows(first * bits // 32, -(-last * bits // 32))

    def unpack() -> Array:
        stream = np.ascontiguousarray(lines.T).view(np.uint8)
        return unpack_fields(stream, bits)[:, : last - first]

    if bits == 3 or last * bits % 32:
        return unpack()
    stream = lines.view(np.uint8)
    return PackedCodes(stream, ((0, stream.shape[1], bits, 1),), unpack)


def _activation_order(words: _Words, inputs: int) -> Array | None:
    """Return the group of each input where groups are not simply neighbours."""
    if words.g_idx is None:
        return None
    order = words.g_idx.load()
    if order.size and (order.min() < 0 or order.max() >= words.groups):
        raise HostileFile(
            f"tensor {words.g_idx.name!r} names a group that is not there",
            where=str(words.g_idx.source.path),
            got=f"{order.min()}..{order.max()}",
            expected=f"0..{words.groups - 1}",
        )
    if inputs % words.groups == 0:
        neighbours = np.arange(inputs) // (inputs // words.groups)
        if np.array_equal(order, neighbours):
            return None
    return order


def _values(
    words: _Words,
    codes: Array | PackedCodes,
    group: int,
    chosen: tuple[int, int],
    order: Array | None = None,
) -> Values:
    scale = words.scales.rows(*chosen).astype(np.float32).T
    stream = words.qzeros.rows(*chosen).view(np.uint8)
    zeros = unpack_fields(stream, words.bits)[:, : words.outputs].astype(np.int32) + words.added
    return Values(codes, (1, group), scale, zeros.T, group=order)


def _awq(module: str, words: _Words) -> StoredTensor:
    inputs, outputs = words.qweight.shape[0], words.outputs
    demand(words.scales, inputs % words.groups == 0, f"a number of groups that divides {inputs}")
    expected = (words.groups, outputs // 8)
    demand(words.qzeros, words.qzeros.shape == expected, str(list(expected)))
    group = inputs // words.groups

    def read(first: int, last: int) -> Values:
        stream = words.qweight.rows(first, last).view(np.uint8)
        plane = (0, stream.shape[1], 4, 1)
        codes = PackedCodes(stream, (plane,), lambda: _in_order(unpack_fields(stream, 4)).T)
        chosen = (first // group, -(-last // group))
        zeros = _in_order(unpack_fields(words.qzeros.rows(*chosen).view(np.uint8), 4))
        scale = words.scales.rows(*chosen).astype(np.float32)
        return Values(codes, (1, group), scale.T, zeros.astype(np.int32).T)

    return _stored(module, words, (inputs, group, group, 1), read, "AWQ")


def _in_order(fields: Array) -> Array:
    """Put each word's eight nibbles into the order of the outputs."""
    places = np.argsort(AWQ_ORDER)
    return fields.reshape(len(fields), -1, 8)[:, :, places].reshape(fields.shape)


def _stored(
    module: str,
    words: _Words,
    sizes: tuple[int, int, int, int],
    read: Callable[[int, int], Values],
    packing: str,
) -> StoredTensor:
    inputs, group, step, finest = sizes
    layout = Layout(f"uint{words.bits}", (1, group), words.scales.number_format, "stored", packing)
    return StoredTensor(
        f"{module}.weight",
        (words.outputs, inputs),
        layout,
        spans(words.qweight, words.qzeros, words.scales, words.g_idx),
        parts(
            codes=words.qweight,
            zero_points=words.qzeros,
            scales=words.scales,
            indices=words.g_idx,
        ),
        read,
        walk_axis=1,
        walk_step=step,
        finest_step=finest,
    )
