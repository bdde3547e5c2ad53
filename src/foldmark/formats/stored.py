"""What every reader yields: tensors as they are stored, read piece by piece."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import numpy as np

from foldmark.errors import HostileFile
from foldmark.formats.activations import StoredActivation
from foldmark.formats.as_quantized import as_quantized
from foldmark.formats.source import FileBytes
from foldmark.formats.values import Array, Layout, Values
from foldmark.tensors.quantized import QuantizedTensor

__all__ = [
    "Artefact",
    "Part",
    "Records",
    "Run",
    "ScaleFields",
    "Span",
    "StoredTensor",
    "refuse_overlaps",
]


# Pieces of a run begin at multiples of its block up to this length; longer blocks are cut.
_LONGEST_STEP = 1 << 20


class Part(Enum):
    """What bytes of a file are for."""

    CODES = "codes"
    SCALES = "scales"
    ZERO_POINTS = "zero points and minima"
    FLOATS = "float tensors"
    INTEGERS = "integer tensors"
    INDICES = "group indices"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A tensor's elements in C order as one axis, for those who need not know its shape.

    Attributes:
        block: how many neighbours share a scale, None where there are no scales.
        reader: called with the first element and the one behind the last: whole blocks, or a part
            of one.
    """

    block: int | None
    reader: Callable[[int, int], Values] = field(repr=False)


@dataclass(frozen=True, eq=False, slots=True)
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
        finest_step: where pieces may be shorter than a block they start at multiples of this; 0
            where they may not.
        note: one remark for the reader of a table, "" for none.
        records: the same bytes as a run of records, where codes and scales are stored so.
        run: the same elements as one axis, where blocks are neighbours.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout
    spans: tuple[Span, ...]
    parts: Mapping[Part, int]
    reader: Callable[[int, int], Values] = field(repr=False)
    walk_axis: int = 0
    walk_step: int = 1
    finest_step: int = 0
    note: str = ""
    records: Records | None = None
    run: Run | None = None

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

    def quantized(self) -> QuantizedTensor:
        """Read the whole tensor as codes, scale, zero point and blocks.

        Raises:
            NotSupported: what does not consist of these: floats, tables, float codes.
        """
        return as_quantized(self.load(), self.layout, self.name)

    def rows(self, start: int, stop: int) -> Values:
        """Read indices start..stop of the walk axis, start a multiple of the step."""
        return self.reader(start, stop)

    def unrolled(self) -> "StoredTensor | None":
        """Return the tensor as one axis, so that rows longer than memory can be read in pieces."""
        if self.run is None:
            return None
        block = self.run.block
        return replace(
            self,
            shape=(self.elements,),
            layout=self.layout if block is None else replace(self.layout, block=(block,)),
            reader=self.run.reader,
            walk_axis=0,
            walk_step=block if block is not None and block <= _LONGEST_STEP else 1,
            run=None,
        )

    def in_parts(self) -> "StoredTensor | None":
        """Return the tensor with pieces that may be shorter than its blocks."""
        return replace(self, walk_step=self.finest_step) if self.finest_step else None

    @property
    def at_once(self) -> int:
        """How many elements the smallest piece has that can be read."""
        length = self.shape[self.walk_axis] if self.shape else 1
        return self.elements // max(1, length) * min(self.walk_step, max(1, length))

    def pieces(
        self, elements: int = 1 << 22, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, Values]]:
        """Yield the tensor in pieces of about so many elements, each with its first index.

        Blocks longer than a piece are cut, and no piece reaches into two of them.

        Args:
            elements: of a piece.
            first, last: the part of the walk axis, first a multiple of the step.
        """
        length = self.shape[self.walk_axis] if self.shape else 1
        across = max(1, self.elements // length) if length else 1
        run = max(1, elements // across // self.walk_step) * self.walk_step
        block = self.layout.block[self.walk_axis] if self.layout.block and self.shape else 1
        start, end = first, length if last is None else last
        while start < end:
            stop = min(start + run, end)
            if block > run:
                stop = min(stop, (start // block + 1) * block)
            yield start, self.reader(start, stop)
            start = stop


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
        activations: what is quantized whenever the model runs, as far as the file tells.
    """

    path: Path
    format_name: str
    files: tuple[FileBytes, ...]
    tensors: tuple[StoredTensor, ...]
    header_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    compressed: int | None = None
    activations: tuple[StoredActivation, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def find(self, name: str) -> StoredTensor | None:
        """Return the tensor of that name, None when there is none."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def quantized(self) -> Iterator[tuple[StoredTensor, QuantizedTensor]]:
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
