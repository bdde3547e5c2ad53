"""Writing safetensors in the forms of compressed-tensors and of GPTQ, version 1.

The layouts are drawn in `schemes.compressed_tensors`, `schemes.scaled` and `schemes.gptq`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from foldmark.errors import InvalidScheme
from foldmark.formats.atomic import write_whole
from foldmark.formats.bitfields import pack_fields
from foldmark.formats.values import Array
from foldmark.tensors.quantized import QuantizedTensor

__all__ = ["write_compressed_tensors", "write_gptq"]

_DTYPES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int8": "I8",
    "uint8": "U8", "int32": "I32", "int64": "I64",
}  # fmt: skip

Tensors = Mapping[str, QuantizedTensor | Array]


def write_compressed_tensors(path: Path, tensors: Tensors) -> None:
    """Write int8 weights plainly and narrower ones packed, as compressed-tensors reads them.

    Args:
        path: where to; it appears whole or not at all.
        tensors: weights (out, in) of signed codes, one scale a tensor, row or group of columns;
            plain arrays are written as they are.

    Raises:
        InvalidScheme: codes or blocks that the form does not have.
        FileUnreadable: a folder that can't be written to.
    """
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, QuantizedTensor):
            arrays |= _compressed(name, tensor)
        else:
            arrays[name] = tensor
    _write(path, arrays, tensors)


def write_gptq(path: Path, tensors: Tensors) -> None:
    """Write weights (out, in) of unsigned codes, grouped along the inputs, as GPTQ version 1.

    Scales are stored as float16; zero points from 1 to 2^bits, less one.

    Raises:
        InvalidScheme: codes or blocks that the form does not have.
        FileUnreadable: a folder that can't be written to.
    """
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, QuantizedTensor):
            arrays |= _gptq(name.removesuffix(".weight"), tensor)
        else:
            arrays[name] = tensor
    _write(path, arrays, tensors)


def _write(path: Path, arrays: dict[str, Array], tensors: Tensors) -> None:
    rules = {
        name: tensor.scheme.rule.name
        for name, tensor in tensors.items()
        if isinstance(tensor, QuantizedTensor)
    }
    metadata = {"format": "pt", "foldmark.rules": json.dumps(rules)}
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise InvalidScheme(f"tensor {name!r} can't be stored", got=array.dtype.name)
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())

    write_whole(path, write)


def _matrix(name: str, tensor: QuantizedTensor) -> tuple[int, int, int]:
    """Return rows, columns and groups a row; 0 groups stand for one scale in all."""
    if tensor.codes.ndim != 2 or tensor.scheme.rule.affine.zero_is_real:
        raise InvalidScheme(
            f"weight {name!r} does not fit the form",
            got=f"{tensor.scheme} for shape {tensor.codes.shape}",
            expected="a matrix with integer zero points",
        )
    rows, columns = tensor.codes.shape
    height, width = tensor.scheme.block.of(tensor.codes.shape)
    if height not in (1, rows) or (height == rows > 1 and width != columns) or columns % width:
        raise InvalidScheme(f"blocks of {name!r} do not fit the form", got=str(tensor.scheme.block))
    return rows, columns, 0 if height == rows > 1 else columns // width


def _compressed(name: str, tensor: QuantizedTensor) -> dict[str, Array]:
    module, codes = name.removesuffix(".weight"), tensor.scheme.codes
    rows, columns, groups = _matrix(name, tensor)
    if not codes.signed:
        raise InvalidScheme(f"codes of {name!r} must be signed", got=codes.name)
    scale = tensor.scale.reshape(-1, groups) if groups else tensor.scale.reshape(1)
    zeros = tensor.zero_point.reshape(scale.shape).astype(np.int8)
    arrays: dict[str, Array] = {f"{module}.weight_scale": scale}
    if codes.bits == 8:
        arrays[f"{module}.weight"] = tensor.codes.astype(np.int8)
        if zeros.any():
            arrays[f"{module}.weight_zero_point"] = zeros
        return arrays
    arrays[f"{module}.weight_packed"] = _words(tensor.codes, codes.bits)
    arrays[f"{module}.weight_shape"] = np.array([rows, columns], np.int64)
    if zeros.any():
        if not groups:
            raise InvalidScheme(f"{name!r} needs one zero point a row", got="one in all")
        arrays[f"{module}.weight_zero_point"] = np.ascontiguousarray(_words(zeros.T, codes.bits).T)
    return arrays


def _words(codes: Array, bits: int) -> Array:
    """Pack signed codes along the last axis into int32 words, low bits first."""
    fields = (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    return _as_words(fields, bits)


def _as_words(fields: Array, bits: int) -> Array:
    packed = pack_fields(np.ascontiguousarray(fields), bits)
    padded = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4)))
    return np.ascontiguousarray(padded).view(np.int32)


def _gptq(module: str, tensor: QuantizedTensor) -> dict[str, Array]:
    codes, bits = tensor.scheme.codes, tensor.scheme.codes.bits
    rows, columns, groups = _matrix(module, tensor)
    fits = not codes.signed and bits in (2, 3, 4, 8) and groups > 0
    if not fits or columns * bits % 32 or rows * bits % 32:
        raise InvalidScheme(
            f"weight {module!r} does not fit GPTQ's words",
            got=f"{tensor.scheme} for shape {tensor.codes.shape}",
            expected="unsigned codes of 2, 3, 4 or 8 bits that fill whole words of 32",
        )
    zeros = tensor.zero_point.reshape(rows, groups).astype(np.int64)
    if zeros.min() < 1 or zeros.max() > 1 << bits:
        raise InvalidScheme(
            f"zero points of {module!r} don't fit version 1, which stores them less one",
            got=f"{zeros.min()}..{zeros.max()}",
        )
    return {
        f"{module}.qweight": np.ascontiguousarray(_as_words(tensor.codes.astype(np.uint8), bits).T),
        f"{module}.qzeros": _as_words((zeros.T - 1).astype(np.uint8), bits),
        f"{module}.scales": np.ascontiguousarray(
            tensor.scale.reshape(rows, groups).T.astype(np.float16)
        ),
        f"{module}.g_idx": (np.arange(columns) // (columns // groups)).astype(np.int32),
    }
