"""Writing GGUF, version 3: Q8_0, Q4_0, Q4_1 and plain float tensors.

The layout is drawn in `gguf_file`, the blocks in `ggml_blocks`. Scales of these types are
float16; a tensor whose scales are not is refused rather than changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from foldmark.errors import InvalidScheme
from foldmark.formats.atomic import write_whole
from foldmark.formats.values import Array
from foldmark.tensors.quantized import QuantizedTensor

__all__ = ["write_gguf"]

_ALIGNMENT = 32
_GROUP = 32
_STRING, _UNSIGNED, _FLOAT = 8, 4, 6
_FLOATS = {"float32": 0, "float16": 1}
_Q4_0, _Q4_1, _Q8_0 = 2, 3, 8


@dataclass(frozen=True, eq=False)
class _Packed:
    """A tensor as its bytes."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    content: bytes


def write_gguf(
    path: Path,
    tensors: Mapping[str, QuantizedTensor | Array],
    metadata: Mapping[str, str | int | float],
) -> None:
    """Write tensors and metadata; each quantized tensor's rule is kept as metadata.

    Args:
        path: where to; it appears whole or not at all.
        tensors: quantized in groups of 32 along the last axis, or float32 and float16 arrays.
        metadata: values by key; "general.architecture" is what readers look for first.

    Raises:
        InvalidScheme: a scheme that no block type of these has.
        FileUnreadable: a folder that can't be written to.
    """
    packed = [_pack(name, tensor) for name, tensor in tensors.items()]
    rules = {
        f"foldmark.rule.{name}": tensor.scheme.rule.name
        for name, tensor in tensors.items()
        if isinstance(tensor, QuantizedTensor)
    }
    header = _header(packed, dict(metadata) | rules)

    def write(file: BinaryIO) -> None:
        file.write(header)
        for tensor in packed:
            file.write(tensor.content)
            file.write(bytes(-len(tensor.content) % _ALIGNMENT))

    write_whole(path, write)


def _header(packed: list[_Packed], metadata: Mapping[str, str | int | float]) -> bytes:
    counts = len(packed).to_bytes(8, "little") + len(metadata).to_bytes(8, "little")
    parts = [b"GGUF" + (3).to_bytes(4, "little") + counts]
    parts += [_pair(key, value) for key, value in metadata.items()]
    offset = 0
    for tensor in packed:
        dims = b"".join(n.to_bytes(8, "little") for n in reversed(tensor.shape))
        rank, kind = len(tensor.shape).to_bytes(4, "little"), tensor.type_id.to_bytes(4, "little")
        parts.append(_text(tensor.name) + rank + dims + kind + offset.to_bytes(8, "little"))
        offset += len(tensor.content) + -len(tensor.content) % _ALIGNMENT
    header = b"".join(parts)
    return header + bytes(-len(header) % _ALIGNMENT)


def _text(words: str) -> bytes:
    encoded = words.encode()
    return len(encoded).to_bytes(8, "little") + encoded


def _pair(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _text(key) + _STRING.to_bytes(4, "little") + _text(value)
    if isinstance(value, int):
        return _text(key) + _UNSIGNED.to_bytes(4, "little") + value.to_bytes(4, "little")
    return _text(key) + _FLOAT.to_bytes(4, "little") + np.float32(value).tobytes()


def _pack(name: str, tensor: QuantizedTensor | Array) -> _Packed:
    if not isinstance(tensor, QuantizedTensor):
        if tensor.dtype.name not in _FLOATS:
            raise InvalidScheme(f"tensor {name!r} can't be stored", got=tensor.dtype.name)
        return _Packed(name, _FLOATS[tensor.dtype.name], tensor.shape, tensor.tobytes())
    shape = tensor.codes.shape
    wanted = (*(1 for _ in shape[:-1]), _GROUP)
    if not shape or tensor.scheme.block.of(shape) != wanted or shape[-1] % _GROUP:
        raise InvalidScheme(
            f"tensor {name!r} is not in groups of {_GROUP} along its last axis",
            got=str(tensor.scheme.block),
        )
    scale = _halves(name, tensor.scale)
    codes = tensor.codes.reshape(-1, _GROUP)
    bits = tensor.scheme.codes.bits
    if tensor.scheme.rule.affine.zero_is_real and bits == 4:
        minimum = _halves(name, tensor.zero_point)
        content = np.concatenate([scale, minimum, _nibbles(codes)], axis=1)
        return _Packed(name, _Q4_1, shape, content.tobytes())
    centred = codes.astype(np.int16) - tensor.zero_point.reshape(-1, 1).astype(np.int16)
    if bits == 8 and centred.min() >= -128 and centred.max() <= 127:
        content = np.concatenate([scale, centred.astype(np.int8).view(np.uint8)], axis=1)
        return _Packed(name, _Q8_0, shape, content.tobytes())
    if bits == 4 and centred.min() >= -8 and centred.max() <= 7:
        content = np.concatenate([scale, _nibbles(centred + 8)], axis=1)
        return _Packed(name, _Q4_0, shape, content.tobytes())
    raise InvalidScheme(f"tensor {name!r} fits none of Q8_0, Q4_0 and Q4_1", got=str(tensor.scheme))


def _halves(name: str, numbers: Array) -> Array:
    """Return numbers as the bytes of float16: (blocks, 2)."""
    with np.errstate(over="ignore"):
        halves = np.asarray(numbers).astype(np.float16)
    if not np.array_equal(halves.astype(np.float64), np.asarray(numbers, np.float64)):
        raise InvalidScheme(
            f"scales of {name!r} are not float16",
            todo="quantize by a rule that stores them so, such as GGML_Q8_0",
        )
    return halves.reshape(-1, 1).view(np.uint8)


def _nibbles(codes: Array) -> Array:
    low, high = codes[:, : _GROUP // 2], codes[:, _GROUP // 2 :]
    return (low | high << 4).astype(np.uint8)
