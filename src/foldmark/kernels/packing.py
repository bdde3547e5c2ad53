"""Codes packed into bytes and back, in any layout of the oracle, on all cores.

The layouts that put neighbours into one byte have loops of their own; every other is a table of
moves: which bits of which code of a period go where in which byte.
"""

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import DataMismatch
from foldmark.exact.packing import HIGH_NIBBLE_FIRST, LOW_NIBBLE_FIRST, BitLayout, stream
from foldmark.kernels.blocks import PIECE
from foldmark.kernels.compiled import compiled, read_only
from foldmark.kernels.threads import each

__all__ = ["fields_of", "gptq_v1_zero_fields", "pack", "unpack", "words_from_bytes"]

Bytes = NDArray[np.uint8]
Codes = NDArray[np.integer[Any]]


def pack(codes: Codes, layout: BitLayout, offset: int = 0) -> Bytes:
    """Return the packed bytes of codes in C order; a last, shorter period is filled with zeros.

    codes   any shape  integers
    offset  added to every code before its low bits are kept: 0 for two's complement,
            2^(bits - 1) to store signed codes without a sign
    ->      (bytes,)   uint8

    Raises DataMismatch for a code that does not fit.
    Exact twin: foldmark.exact.packing.pack.
    """
    fields_fit(codes, layout.bits, offset)
    flat = codes.reshape(-1)
    packed = np.empty(-(-flat.size // layout.codes) * layout.size, np.uint8)
    step = _periods_per_piece(layout)

    def run(first: int) -> None:
        part = flat[first * layout.codes : (first + step) * layout.codes]
        pack_into(part, layout, offset, packed[first * layout.size : (first + step) * layout.size])

    each(run, range(0, -(-flat.size // layout.codes), step))
    return packed


def unpack(
    packed: Bytes, layout: BitLayout, count: int, offset: int = 0, *, signed: bool = False
) -> Codes:
    """Return the first `count` codes of packed bytes.

    packed  uint8, in C order
    offset  what packing added to each code
    signed  whether the fields are two's complement
    ->      (count,)  int8 where signed or offset, else uint8

    Raises DataMismatch when there are too few bytes.
    Exact twin: foldmark.exact.packing.unpack.
    """
    if -(-count // layout.codes) * layout.size > packed.size:
        raise DataMismatch("too few bytes", got=str(packed.size), expected=f"{count} codes")
    flat = np.ascontiguousarray(packed).reshape(-1)
    codes = np.empty(count, np.int8 if signed or offset else np.uint8)
    step = _periods_per_piece(layout)

    def run(first: int) -> None:
        part = codes[first * layout.codes : (first + step) * layout.codes]
        unpack_into(
            flat[first * layout.size : (first + step) * layout.size], layout, offset, signed, part
        )

    each(run, range(0, -(-count // layout.codes), step))
    return codes


def fields_of(codes: Codes, bits: int, offset: int = 0) -> Bytes:
    """Return the bit fields of codes: (code + offset) as an unsigned number of `bits` bits.

    Raises DataMismatch for a code that does not fit. Exact twin: foldmark.exact.packing.fields_of.
    """
    fields_fit(codes, bits, offset)
    return ((codes.astype(np.int64) + offset) & ((1 << bits) - 1)).astype(np.uint8)


def words_from_bytes(packed: Bytes) -> NDArray[np.int32]:
    """Return packed bytes as int32 words, lowest byte first; a last, shorter word is filled.

    Exact twin: foldmark.exact.packing.words_from_bytes.
    """
    full = np.zeros(-(-packed.size // 4) * 4, np.uint8)
    full[: packed.size] = packed.reshape(-1)
    return full.view("<i4").astype(np.int32)


def gptq_v1_zero_fields(zero_points: Codes, bits: int) -> Bytes:
    """Return the fields that the first GPTQ file format stores: zero point - 1, wrapped.

    Exact twin: foldmark.exact.packing.gptq_v1_zero_fields.
    """
    return ((zero_points.astype(np.int64) - 1) & ((1 << bits) - 1)).astype(np.uint8)


def fields_fit(codes: Codes, bits: int, offset: int) -> None:
    """Raise DataMismatch for the first code that does not fit its bits."""
    lowest, beyond = -(1 << (bits - 1)), 1 << bits
    if codes.size == 0:
        return
    if lowest <= int(codes.min()) + offset and int(codes.max()) + offset < beyond:
        return
    shifted = codes.reshape(-1).astype(np.int64) + offset
    index = int(np.argmax((shifted < lowest) | (shifted >= beyond)))
    raise DataMismatch(
        "code does not fit",
        where=f"index {index}",
        got=str(int(codes.reshape(-1)[index])),
        expected=f"{bits} bits",
    )


def pack_into(codes: Codes, layout: BitLayout, offset: int, packed: Bytes) -> None:
    """Pack whole periods, and a last shorter one, in the calling thread."""
    known, codes = _packers().get(layout), read_only(codes)
    whole = codes.size // layout.codes * layout.codes
    if known is None:
        packed[:] = 0
        _pack_moves(codes, offset, _moves(layout), layout.codes, layout.size, packed)
        return
    known(codes[:whole], codes.dtype.type(offset), packed[: whole // layout.codes * layout.size])
    if whole < codes.size:
        rest = packed[whole // layout.codes * layout.size :]
        rest[:] = 0
        _pack_moves(codes[whole:], offset, _moves(layout), layout.codes, layout.size, rest)


def unpack_into(packed: Bytes, layout: BitLayout, offset: int, signed: bool, codes: Codes) -> None:
    """Unpack as many codes as `codes` has room for, in the calling thread."""
    known, packed = _unpackers().get(layout), read_only(packed)
    sign = codes.dtype.type((1 << (layout.bits - 1)) if signed else 0)
    whole = codes.size // layout.codes * layout.codes
    if known is None:
        whole = 0
    else:
        size = whole // layout.codes * layout.size
        known(packed[:size], codes.dtype.type(offset), sign, codes[:whole])
        packed = packed[size:]
    if whole < codes.size:
        rest = codes[whole:]
        _unpack_moves(packed, offset, int(sign), _moves(layout), layout.codes, layout.size, rest)


def _periods_per_piece(layout: BitLayout) -> int:
    return max(1, PIECE // layout.codes)


@cache
def _moves(layout: BitLayout) -> NDArray[np.int64]:
    """Return the moves of a layout: code, shift and mask of its bits, byte, and shift there.

    ->  (moves, 5)  int64; neighbouring bits that stay neighbours within one byte move together
    """
    moves: list[list[int]] = []
    for code, places in enumerate(layout.places):
        for bit, place in enumerate(places):
            byte, shift = divmod(place, 8)
            last = moves[-1] if moves else None
            if bit and last and last[3] == byte and last[4] + bit - last[1] == shift:
                last[2] = last[2] << 1 | 1
            else:
                moves.append([code, bit, 1, byte, shift])
    return np.array(moves, np.int64)


@cache
def _packers() -> dict[BitLayout, Callable[..., None]]:
    return {
        LOW_NIBBLE_FIRST: partial(_pack_pairs, False),
        HIGH_NIBBLE_FIRST: partial(_pack_pairs, True),
        stream(4): partial(_pack_pairs, False),
        stream(2): _pack_crumbs,
    }


@cache
def _unpackers() -> dict[BitLayout, Callable[..., None]]:
    return {
        LOW_NIBBLE_FIRST: _unpack_low_nibble_first,
        HIGH_NIBBLE_FIRST: _unpack_high_nibble_first,
        stream(4): _unpack_low_nibble_first,
        stream(2): _unpack_crumbs,
    }


@compiled
def _pack_low_nibble_first(codes: Codes, offset: int, packed: Bytes) -> None:
    for i in range(packed.size):
        low, high = np.uint8(codes[2 * i] + offset), np.uint8(codes[2 * i + 1] + offset)
        packed[i] = np.uint8(np.uint8(low & np.uint8(15)) | np.uint8(high << np.uint8(4)))


@compiled
def _pack_high_nibble_first(codes: Codes, offset: int, packed: Bytes) -> None:
    for i in range(packed.size):
        high, low = np.uint8(codes[2 * i] + offset), np.uint8(codes[2 * i + 1] + offset)
        packed[i] = np.uint8(np.uint8(low & np.uint8(15)) | np.uint8(high << np.uint8(4)))


def _pack_pairs(high_first: bool, codes: Codes, offset: int, packed: Bytes) -> None:
    """Pack codes of one byte two at a time; other codes one by one."""
    if codes.itemsize == 1 and codes.flags.c_contiguous and sys.byteorder == "little":
        bias = np.uint16((int(offset) & 15) * 0x0101)
        _pack_words(codes.view(np.uint16), bias, high_first, packed)
    elif high_first:
        _pack_high_nibble_first(codes, offset, packed)
    else:
        _pack_low_nibble_first(codes, offset, packed)


@compiled
def _pack_words(
    pairs: NDArray[np.uint16], bias: np.uint16, high_first: bool, packed: Bytes
) -> None:
    """Pack pairs of codes, the first in the low byte; `bias` is added to both.

        pair  ....bbbb ....aaaa  ->  bbbbaaaa, or aaaabbbb with the first code high

    Four bits and a bias of four bits stay within their byte.
    """
    low, high = np.uint16(0x000F), np.uint16(0x00F0)
    if high_first:
        for i in range(packed.size):
            pair = np.uint16(np.uint16(pairs[i] & np.uint16(0x0F0F)) + bias)
            upper = np.uint16(np.uint16(pair << np.uint16(4)) & high)
            packed[i] = np.uint8(upper | np.uint16(np.uint16(pair >> np.uint16(8)) & low))
    else:
        for i in range(packed.size):
            pair = np.uint16(np.uint16(pairs[i] & np.uint16(0x0F0F)) + bias)
            upper = np.uint16(np.uint16(pair >> np.uint16(4)) & high)
            packed[i] = np.uint8(upper | np.uint16(pair & low))


@compiled
def _pack_crumbs(codes: Codes, offset: int, packed: Bytes) -> None:
    for i in range(packed.size):
        a = np.uint8(np.uint8(codes[4 * i] + offset) & np.uint8(3))
        b = np.uint8(np.uint8(codes[4 * i + 1] + offset) & np.uint8(3))
        c = np.uint8(np.uint8(codes[4 * i + 2] + offset) & np.uint8(3))
        d = np.uint8(np.uint8(codes[4 * i + 3] + offset) & np.uint8(3))
        packed[i] = np.uint8(a | (b << np.uint8(2)) | (c << np.uint8(4)) | (d << np.uint8(6)))


@compiled
def _unpack_low_nibble_first(packed: Bytes, offset: int, sign: int, codes: Codes) -> None:
    for i in range(packed.size):
        byte = np.int32(packed[i])
        low, high = np.int32(byte & np.int32(15)), np.int32(byte >> np.int32(4))
        codes[2 * i] = np.int32((low ^ np.int32(sign)) - np.int32(sign) - np.int32(offset))
        codes[2 * i + 1] = np.int32((high ^ np.int32(sign)) - np.int32(sign) - np.int32(offset))


@compiled
def _unpack_high_nibble_first(packed: Bytes, offset: int, sign: int, codes: Codes) -> None:
    for i in range(packed.size):
        byte = np.int32(packed[i])
        low, high = np.int32(byte & np.int32(15)), np.int32(byte >> np.int32(4))
        codes[2 * i] = np.int32((high ^ np.int32(sign)) - np.int32(sign) - np.int32(offset))
        codes[2 * i + 1] = np.int32((low ^ np.int32(sign)) - np.int32(sign) - np.int32(offset))


@compiled
def _unpack_crumbs(packed: Bytes, offset: int, sign: int, codes: Codes) -> None:
    for i in range(packed.size):
        byte = np.int32(packed[i])
        for place in range(4):
            crumb = np.int32(np.int32(byte >> np.int32(2 * place)) & np.int32(3))
            code = np.int32((crumb ^ np.int32(sign)) - np.int32(sign) - np.int32(offset))
            codes[4 * i + place] = code


@compiled
def _pack_moves(
    codes: Codes,
    offset: int,
    moves: NDArray[np.int64],
    period: int,
    size: int,
    packed: Bytes,
) -> None:
    for first in range(packed.size // size):
        for move in range(moves.shape[0]):
            code, shift, mask, byte, place = moves[move]
            index = first * period + code
            if index < codes.size:
                bits = (((np.int64(codes[index]) + offset) >> shift) & mask) << place
                packed[first * size + byte] |= np.uint8(bits)


@compiled
def _unpack_moves(
    packed: Bytes,
    offset: int,
    sign: int,
    moves: NDArray[np.int64],
    period: int,
    size: int,
    codes: Codes,
) -> None:
    for first in range(-(-codes.size // period)):
        # A code's moves follow one another: the field is whole when the next code begins.
        field = 0
        for move in range(moves.shape[0]):
            code, shift, mask, byte, place = moves[move]
            index = first * period + code
            if index >= codes.size:
                break
            part = ((np.int64(packed[first * size + byte]) >> place) & mask) << shift
            field = part if shift == 0 else field | part
            codes[index] = (field ^ sign) - sign - offset
