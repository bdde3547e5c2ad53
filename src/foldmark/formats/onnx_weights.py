"""The tensors of an ONNX model: quantized weights, as its operators read them, and plain ones.

Large weights are read in their files, piece by piece, whether inside the model or beside it.
"""

import math
from pathlib import Path

import numpy as np
import onnx

from foldmark.errors import HostileFile
from foldmark.formats.bitfields import unpack_fields
from foldmark.formats.entry import Entry
from foldmark.formats.onnx_activations import activations_of
from foldmark.formats.onnx_file import read_in_place
from foldmark.formats.onnx_graph import Graph, collect
from foldmark.formats.onnx_places import FINDABLE, FORMATS, Places
from foldmark.formats.onnx_quantized import Packed, Weight, weights_of
from foldmark.formats.onnx_scales import faulty_scales
from foldmark.formats.onnx_tensor import byte_count
from foldmark.formats.plain import part_of
from foldmark.formats.scaled_blocks import Held, Numbers, ScaledBlocks
from foldmark.formats.stored import Artefact, Part, Run, Span, StoredTensor
from foldmark.formats.values import Array, Layout, Values

__all__ = ["read_onnx"]


def read_onnx(path: Path) -> Artefact:
    """Read a model's structure; tensors are read when asked for.

    Raises:
        FileUnreadable, FormatNotRecognised, TruncatedFile, HostileFile: as `read_in_place`.
    """
    model = read_in_place(path, FINDABLE)
    graph = Graph(path)
    collect(model.graph, graph)
    places = Places(path, graph.tensors.values())
    found = [weight for node in graph.nodes for weight in weights_of(node, graph)]
    tensors = [_stored(weight, places) for weight in found]
    for name, tensor in graph.tensors.items():
        if name not in graph.taken:
            tensors.append(_plain(tensor, name, places))
    files = places.files()
    inside = sum(t.nbytes for t in tensors)
    header = sum(file.size for file in files) - inside - places.unused()
    metadata = {"producer": f"{model.producer_name} {model.producer_version}".strip()}
    metadata |= {prop.key: prop.value for prop in model.metadata_props}
    opset = max((entry.version for entry in model.opset_import if not entry.domain), default=0)
    metadata["opset"] = str(opset)
    weight_scales = {id(weight.scale) for weight in found}
    return Artefact(
        path,
        "ONNX",
        files,
        tuple(tensors),
        max(0, header),
        metadata,
        tuple(faulty_scales(graph, places, weight_scales)),
        activations=tuple(activations_of(graph, places)),
    )


def _stored(weight: Weight, places: Places) -> StoredTensor:
    if weight.packed is not None:
        return _stored_bits(weight, weight.packed, places)
    shape, scale, zeros = tuple(weight.codes.dims), weight.scale, weight.zero_point
    block = _block(weight, shape, str(places.model.path))
    codes = places.numbers(weight.codes)
    layout = Layout(
        FORMATS.get(weight.codes.data_type, "unknown"),
        block,
        None if scale is None else FORMATS.get(scale.data_type, "unknown"),
        "none" if zeros is None else "stored",
        weight.form,
    )
    if scale is None or block is None:
        return StoredTensor(
            weight.name,
            shape,
            layout,
            _spans(weight, places),
            _parts(weight, places),
            _Rows(codes, shape).read,
            note="its scale is not a constant of the graph",
            run=_Rows(codes, shape).run,
        )
    blocks = ScaledBlocks(
        codes,
        places.numbers(scale),
        None if zeros is None else places.numbers(zeros),
        shape,
        block,
    )
    return blocks.tensor(weight.name, layout, _spans(weight, places), _parts(weight, places))


class _Rows:
    """Numbers without a scale, read along their first axis."""

    def __init__(self, numbers: Numbers, shape: tuple[int, ...]) -> None:
        self.numbers, self.shape = numbers, shape

    def read(self, first: int, last: int) -> Values:
        across = math.prod(self.shape[1:])
        rows = (last - first, *self.shape[1:]) if self.shape else ()
        return Values(self.numbers.stored(first * across, last * across, rows))

    @property
    def run(self) -> Run:
        """The same numbers as one axis."""
        return Run(None, _Rows(self.numbers, (self.numbers.elements,)).read)


def _block(weight: Weight, shape: tuple[int, ...], where: str) -> tuple[int, ...] | None:
    """Work out which elements share a scale.

    Raises:
        HostileFile: when scale, zero point and codes contradict each other.
    """
    if weight.scale is None:
        return None
    counts, rank = tuple(weight.scale.dims), len(shape)
    elements = int(np.prod(counts, dtype=np.int64)) if counts else 1
    zeros = weight.zero_point
    fits = zeros is None or int(np.prod(zeros.dims, dtype=np.int64)) in (elements, 1)
    block: tuple[int, ...] | None = None
    if elements == 1:
        block = tuple(max(1, n) for n in shape)
    elif weight.block_size and weight.axis is not None and -rank <= weight.axis < rank:
        axis = weight.axis % rank
        block = tuple(weight.block_size if i == axis else 1 for i in range(rank))
    elif weight.axis is None:
        aligned = (1,) * (rank - len(counts)) + counts
        if len(aligned) == rank:
            block = tuple(1 if c == n else max(1, n) for c, n in zip(aligned, shape, strict=True))
    elif -rank <= weight.axis < rank:
        axis = weight.axis % rank
        block = tuple(1 if i == axis else max(1, n) for i, n in enumerate(shape))
    blocks = [-(-n // b) for n, b in zip(shape, block or (), strict=False)]
    if block is None or not fits or (elements > 1 and int(np.prod(blocks)) != elements):
        raise HostileFile(
            f"the scale of {weight.name!r} does not fit its codes",
            where=where,
            got=f"scale {list(counts)} for codes {list(shape)}",
        )
    return block


def _stored_bits(weight: Weight, packed: Packed, places: Places) -> StoredTensor:
    rows, columns = int(np.prod(packed.shape[:-1])), packed.shape[-1]
    blocks, bits, block = -(-columns // weight.block_size), packed.bits, weight.block_size
    scale, zeros, shape = weight.scale, weight.zero_point, (rows, columns)
    bytes_a_row = byte_count(weight.codes) // rows
    fits = byte_count(weight.codes) == rows * bytes_a_row and bytes_a_row * 8 >= columns * bits
    if scale is None or not fits or int(np.prod(scale.dims)) != rows * blocks:
        raise HostileFile(
            f"the packed weight {weight.name!r} contradicts its operator",
            where=str(places.model.path),
            got=f"codes {list(weight.codes.dims)}, scales {list(scale.dims) if scale else None}",
            expected=f"{rows} rows of {columns} codes in {blocks} blocks",
        )
    offsets: Numbers = Held(np.array(1 << (bits - 1), np.int32))
    if zeros is not None:
        where = f"{places.model.path}: {zeros.name!r}"
        offsets = _packed_zeros(places.numbers(zeros), (rows, blocks), bits, where)
    numbers = places.numbers(weight.codes)
    codes: Numbers = _Trimmed(numbers, bytes_a_row, bits, columns)
    if isinstance(numbers, Entry) and bytes_a_row * 8 == columns * bits:
        codes = Entry(numbers.name, f"uint{bits}", shape, numbers.source, numbers.offset)
    scaled = ScaledBlocks(codes, places.numbers(scale), offsets, shape, (1, block))
    layout = Layout(
        f"uint{bits}",
        (1, block),
        FORMATS.get(scale.data_type, "unknown"),
        f"at {1 << (bits - 1)}" if zeros is None else "stored",
        weight.form,
    )
    return scaled.tensor(weight.name, layout, _spans(weight, places), _parts(weight, places))


class _Trimmed:
    """Rows of packed codes, each with what fills its last block up, which is left out."""

    def __init__(self, numbers: Numbers, bytes_a_row: int, bits: int, columns: int) -> None:
        self.numbers, self.bytes_a_row, self.bits, self.columns = (
            numbers,
            bytes_a_row,
            bits,
            columns,
        )
        self.elements = numbers.elements // bytes_a_row * columns

    def read(self, first: int, last: int) -> Array:
        """Read codes first..last in C order."""
        top, bottom = first // self.columns, -(-last // self.columns)
        raw = self.numbers.read(top * self.bytes_a_row, bottom * self.bytes_a_row)
        stream = np.ascontiguousarray(raw.reshape(bottom - top, self.bytes_a_row))
        codes = unpack_fields(stream.view(np.uint8), self.bits)[:, : self.columns].reshape(-1)
        return codes[first - top * self.columns : last - top * self.columns]

    def stored(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Read codes first..last in C order."""
        return self.read(first, last).reshape(shape)

    def load(self) -> Array:
        """Read everything."""
        return self.read(0, self.elements)


def _packed_zeros(numbers: Numbers, blocks: tuple[int, int], bits: int, where: str) -> Numbers:
    """Return zero points (rows, blocks): one a number, or packed along each row.

    Raises:
        HostileFile: another number of them.
    """
    if numbers.elements == blocks[0] * blocks[1]:
        return numbers
    bytes_a_row, rest = divmod(numbers.elements, blocks[0])
    if rest or bytes_a_row * 8 < blocks[1] * bits or numbers.read(0, 1).dtype != np.uint8:
        raise HostileFile("zero points do not fit", where=where)
    return _Trimmed(numbers, bytes_a_row, bits, blocks[1])


def _spans(weight: Weight, places: Places) -> tuple[Span, ...]:
    tensors = (weight.codes, weight.scale, weight.zero_point)
    return tuple(span for t in tensors if t is not None for span in places.spans(t))


def _parts(weight: Weight, places: Places) -> dict[Part, int]:
    parts = {Part.CODES: places.count(weight.codes)}
    if weight.scale is not None:
        parts[Part.SCALES] = places.count(weight.scale)
    if weight.zero_point is not None:
        parts[Part.ZERO_POINTS] = places.count(weight.zero_point)
    return parts


def _plain(tensor: onnx.TensorProto, name: str, places: Places) -> StoredTensor:
    number_format = FORMATS.get(tensor.data_type, "other")
    shape = tuple(tensor.dims)
    rows = _Rows(places.numbers(tensor), shape)
    return StoredTensor(
        name,
        shape,
        Layout(number_format),
        places.spans(tensor),
        {part_of(number_format): places.count(tensor)},
        rows.read,
        run=rows.run,
    )
