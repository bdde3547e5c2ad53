"""What every reader yields: tensors as they are stored, read piece by piece."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foldmark.errors import HostileFile
from foldmark.formats.source import FileBytes

if TYPE_CHECKING:
    from foldmark.tensors.quantized import QuantizedTensor

__all__ = [
    "Array",
    "Artefact",
    "Layout",
    "PackedCodes",
    "Part",
    "Records",
    "ScaleFields",
    "Span",
    "StoredTensor",
    "Values",
    "expand_blocks",
    "refuse_overlaps",
]


Array = NDArray[Any]


class Part(Enum):
    """What bytes of a file are for."""

    CODES = "codes"
    SCALES = "scales"
    ZERO_POINTS = "zero points and minima"
    FLOATS = "float tensors"
    INTEGERS = "integer tensors"
    INDICES = "group indices"


@dataclass(frozen=True)
class Span:
    """A run of bytes that belongs to one tensor.

    Attributes:
        source: the file it lies in.
        offset: first byte.
        nbytes: length.
    """

    source: FileBytes
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """How a tensor's numbers are stored.

    Attributes:
        number_format: "int8", "uint4", "float8_e4m3fn", "nf4", "float32", "int64" ...
        block: elements along each axis that share a scale; None when there is no scale.
        scale_format: type of the stored scale ("float16", "6 bits of a float16"), None without.
        zero_point: "none", "at 8" (the same for all), "stored", "real" (a float offset).
        packing: the name that the format has for it ("Q4_0", "GPTQ v1", "plain").
    """

    number_format: str
    block: tuple[int, ...] | None = None
    scale_format: str | None = None
    zero_point: str = "none"
    packing: str = "plain"

    @property
    def is_quantized(self) -> bool:
        """True when a scale belongs to the codes."""
        return self.block is not None

    def granularity(self, shape: tuple[int, ...]) -> str:
        """Say in words which elements share a scale."""
        if self.block is None:
            return ""
        if all(b >= n for b, n in zip(self.block, shape, strict=True)):
            return "per tensor"
        whole = [b >= n for b, n in zip(self.block, shape, strict=True)]
        single = [axis for axis, b in enumerate(self.block) if b == 1 and not whole[axis]]
        partial = [axis for axis, b in enumerate(self.block) if b > 1 and not whole[axis]]
        if not partial and len(single) == 1:
            return f"per axis {single[0]}"
        if len(partial) == 1:
            return f"groups of {self.block[partial[0]]} along axis {partial[0]}"
        return "tiles of " + " x ".join(str(b) for b in self.block)


def expand_blocks(per_block: Array, block: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Repeat one value a block until it has the tensor's shape; a whole axis stays of length 1."""
    for axis, (size, length) in enumerate(zip(block, shape, strict=True)):
        if size > 1 and per_block.shape[axis] > 1:
            per_block = np.repeat(per_block, size, axis=axis)
            if per_block.shape[axis] > length:
                per_block = per_block.take(range(length), axis=axis)
    return per_block


@dataclass(frozen=True, eq=False)
class PackedCodes:
    """Codes still in their bytes, for those who only want to count them.

    Attributes:
        records: uint8 (n, bytes of a record); a record holds codes and other things.
        planes: one or two: first byte, number of bytes, bits of a field, bytes of a run, as the
            ggml blocks have them; the fields of the second are put above those of the first.
        unpack: gives the codes in their own order and shape.
    """

    records: Array
    planes: tuple[tuple[int, int, int, int], ...]
    unpack: Callable[[], Array]


@dataclass(frozen=True, eq=False)
class Values:
    """Codes and what turns them back into real numbers.

        value = scale * (number(code) - zero_point) + offset

    Attributes:
        stored: the codes, or the bytes that they are packed in.
        block: elements along each axis that share a scale, None without scale.
        scale: one a block, the tensor's rank, float32 or wider; None when there is none.
        zero_point: one a block, or a scalar for all; None for zero.
        offset: one a block, float32; None for zero.
        codebook: the real number of each code, None when a code is its own number.
        group: for each index of the last axis the group that it belongs to, where groups are
            not neighbours (GPTQ's activation order); None otherwise.
    """

    stored: Array | PackedCodes
    block: tuple[int, ...] | None = None
    scale: Array | None = None
    zero_point: Array | None = None
    offset: Array | None = None
    codebook: Array | None = None
    group: Array | None = None

    @cached_property
    def codes(self) -> Array:
        """The tensor's shape; integers, indices of a codebook, or the floats themselves."""
        return self.stored.unpack() if isinstance(self.stored, PackedCodes) else self.stored

    def spread(self, per_block: Array) -> Array:
        """Return a value a block as one that broadcasts to the codes."""
        if per_block.ndim == 0 or self.block is None:
            return per_block
        if self.group is not None:
            return per_block.take(self.group, axis=-1)
        return expand_blocks(per_block, self.block, self.codes.shape)

    def dequantize(self) -> Array:
        """Return the real numbers, float32, each step rounded once as the field's tools do."""
        codes = self.codes
        if self.codebook is not None:
            numbers = self.codebook[codes.astype(np.intp)]
        elif self.zero_point is None:
            numbers = codes.astype(np.float32)
        elif np.issubdtype(self.zero_point.dtype, np.integer):
            shift = self.spread(self.zero_point.astype(np.int32))
            numbers = (codes.astype(np.int32) - shift).astype(np.float32)
        else:
            numbers = codes.astype(np.float32) - self.spread(self.zero_point)
        if self.scale is not None:
            numbers = numbers * self.spread(self.scale)
        if self.offset is not None:
            numbers = numbers + self.spread(self.offset)
        return numbers.astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class ScaleFields:
    """Where the scales of a record stand: one number, and integers that multiply it.

        scale[i] = numbers[base] * ((low field i | high field i << low bits) - bias)

    Attributes:
        start: first byte of the base, little-endian.
        nbytes: its bytes, 1 or 2.
        numbers: float32 (2^(8 nbytes),): the number that each pattern of the base stands for.
        fields: int64 (scales, 7): byte, shift and mask of the low part, the same of the high
            part, bits of the low part; (0, 7) where the base itself is the only scale.
        bias: what zero is stored as.
        signed: whether fields are signed bytes.
        minimum: first byte of the float16 that multiplies the minima, -1 where there are none.
    """

    start: int
    nbytes: int
    numbers: Array
    fields: Array
    bias: int = 0
    signed: bool = False
    minimum: int = -1


@dataclass(frozen=True, eq=False)
class Records:
    """A tensor as a run of equal records, for those who read it from end to end, shape aside.

    Attributes:
        source: the file.
        offset: first byte.
        count: number of records.
        nbytes: bytes of a record.
        elements: codes of a record.
        planes: as in `PackedCodes`; none where codes are no bit fields.
        scales: where a record's scales stand.
        decode: turns uint8 (n, nbytes) into values of shape (n, elements).
    """

    source: FileBytes
    offset: int
    count: int
    nbytes: int
    elements: int
    planes: tuple[tuple[int, int, int, int], ...]
    scales: ScaleFields
    decode: Callable[[Array], Values] = field(repr=False)

    def read(self, first: int, last: int) -> Array:
        """Read records first..last: uint8 (n, nbytes)."""
        raw = self.source.array(
            np.uint8, self.offset + first * self.nbytes, (last - first) * self.nbytes, "records"
        )
        return raw.reshape(last - first, self.nbytes)


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor of a file; its numbers are read when asked for.

    Attributes:
        name: as in the file.
        shape: of the weight that it stands for.
        layout: how it is stored.
        spans: where its bytes lie.
        parts: how many bytes serve what.
        reader: called with the first index and the one behind the last along `walk_axis`.
        walk_axis: the axis along which pieces can be read without touching the rest.
        walk_step: pieces start at multiples of this.
        note: one remark for the reader of a table, "" for none.
        records: the same bytes as a run of records, where codes and scales are stored so.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout
    spans: tuple[Span, ...]
    parts: Mapping[Part, int]
    reader: Callable[[int, int], Values] = field(repr=False)
    walk_axis: int = 0
    walk_step: int = 1
    note: str = ""
    records: Records | None = None

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file, scales and zero points included."""
        return sum(self.parts.values())

    @property
    def bits_per_weight(self) -> float:
        """Bits in the file for each weight, everything counted; 0 for an empty tensor."""
        return 8 * self.nbytes / self.elements if self.elements else 0.0

    def load(self) -> Values:
        """Read the whole tensor."""
        return self.reader(0, self.shape[self.walk_axis] if self.shape else 1)

    def quantized(self) -> "QuantizedTensor":
        """Read the whole tensor as codes, scale, zero point and blocks.

        Raises:
            NotSupported: what does not consist of these: floats, tables, float codes.
        """
        from foldmark.formats.as_quantized import as_quantized  # noqa: PLC0415  (both ways)

        return as_quantized(self)

    def rows(self, start: int, stop: int) -> Values:
        """Read indices start..stop of the walk axis, start a multiple of the step."""
        return self.reader(start, stop)

    def pieces(self, elements: int = 1 << 22) -> Iterator[tuple[int, Values]]:
        """Yield the tensor in pieces of about so many elements, each with its first index."""
        length = self.shape[self.walk_axis] if self.shape else 1
        across = max(1, self.elements // length) if length else 1
        run = max(1, elements // across // self.walk_step) * self.walk_step
        for start in range(0, length, run):
            yield start, self.reader(start, min(start + run, length))


@dataclass(frozen=True, eq=False)
class Artefact:
    """A model file, or a set of shards, taken apart.

    Attributes:
        path: what was opened.
        format_name: "GGUF", "safetensors (compressed-tensors)", ...
        files: every file that belongs to it.
        tensors: in file order.
        header_bytes: bytes for names, shapes, metadata and graph.
        metadata: what the file says of itself, as text.
        warnings: what the reader saw on the way.
        compressed: bytes that all tensors take in a compressed file, None where each lies
            as it is and the sum of their own bytes counts.
    """

    path: Path
    format_name: str
    files: tuple[FileBytes, ...]
    tensors: tuple[StoredTensor, ...]
    header_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    compressed: int | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def find(self, name: str) -> StoredTensor | None:
        """Return the tensor of that name, None when there is none."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def quantized(self) -> Iterator[tuple[StoredTensor, "QuantizedTensor"]]:
        """Yield every quantized tensor, read one at a time, with where it lies and its name.

        Raises:
            NotSupported: at the first tensor that has no codes, scale and zero point in blocks.
        """
        for tensor in self.tensors:
            if tensor.layout.is_quantized:
                yield tensor, tensor.quantized()

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()


def refuse_overlaps(spans: list[tuple[int, int, str]], where: str) -> None:
    """Refuse tensors that share bytes; each span is (offset, length, name).

    Raises:
        HostileFile: naming the two tensors.
    """
    last_end, last_name = 0, ""
    for offset, nbytes, name in sorted(spans):
        if nbytes and offset < last_end:
            raise HostileFile(
                f"tensors {last_name!r} and {name!r} overlap",
                where=where,
                got=f"offset {offset}",
                expected=f"at least {last_end}",
            )
        if nbytes:
            last_end, last_name = offset + nbytes, name
