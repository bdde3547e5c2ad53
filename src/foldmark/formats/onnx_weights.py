"""Quantized weights of an ONNX model: the initializers, and the operators that say what they mean.

An initializer of integers is a weight's codes when an operator takes it together with a scale:

    DequantizeLinear(codes, scale, zero point)     per tensor, axis or block
    QLinearConv, QLinearMatMul, QGemm              scale and zero point beside the weight
    MatMulInteger, ConvInteger                     the scale is multiplied in behind: Cast, Mul
    DynamicQuantizeMatMul, MatMulIntegerToFloat, QAttention, DynamicQuantizeLSTM
    MatMulNBits, GatherBlockQuantized              packed bits along the reduced axis
    Cast, Mul (or Cast, Sub, Mul)                  arithmetic written out

All other initializers are plain. External data is read in place, piece by piece.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from foldmark.errors import HostileFile
from foldmark.formats.bitfields import unpack_fields
from foldmark.formats.onnx_file import read_structure
from foldmark.formats.onnx_tensor import (
    byte_count,
    external_entries,
    is_external,
    tensor_array,
)
from foldmark.formats.plain import part_of
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, Part, Span, StoredTensor
from foldmark.formats.values import Array, Layout, Values

__all__ = ["read_onnx"]

_Proto = onnx.TensorProto
# element type -> our name for it and the bits that an element takes in the file
_FORMATS = {
    _Proto.FLOAT: "float32",
    _Proto.FLOAT16: "float16",
    _Proto.BFLOAT16: "bfloat16",
    _Proto.DOUBLE: "float64",
    _Proto.UINT8: "uint8",
    _Proto.INT8: "int8",
    _Proto.UINT16: "uint16",
    _Proto.INT16: "int16",
    _Proto.INT32: "int32",
    _Proto.UINT32: "uint32",
    _Proto.INT64: "int64",
    _Proto.UINT64: "uint64",
    _Proto.BOOL: "bool",
    _Proto.INT4: "int4",
    _Proto.UINT4: "uint4",
    _Proto.FLOAT8E4M3FN: "float8_e4m3fn",
    _Proto.FLOAT8E5M2: "float8_e5m2",
    _Proto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    _Proto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    _Proto.FLOAT4E2M1: "float4_e2m1fn",
}
_CODE_TYPES = frozenset(
    {
        _Proto.INT8,
        _Proto.UINT8,
        _Proto.INT16,
        _Proto.UINT16,
        _Proto.INT4,
        _Proto.UINT4,
        _Proto.INT32,
        _Proto.FLOAT8E4M3FN,
        _Proto.FLOAT8E5M2,
    }
)
_SCALE_TYPES = (_Proto.FLOAT, _Proto.FLOAT16, _Proto.BFLOAT16)
# Shorter tensors are not looked for in the file: their bytes could stand anywhere.
_FINDABLE = 64
_SEARCHES = 8


@dataclass(frozen=True)
class _Slot:
    """Which inputs of an operator are a weight's codes, scale and zero point.

    Attributes:
        codes, scale, zero_point: positions among the inputs; -1 for none.
        axis: what a scale of more than one item runs along.
    """

    codes: int
    scale: int
    zero_point: int
    axis: int


# A scale of -1 is found behind the operator, where the integers are turned into floats.
_SLOTS: Mapping[str, tuple[_Slot, ...]] = {
    "QLinearConv": (_Slot(3, 4, 5, 0),),
    "QLinearMatMul": (_Slot(3, 4, 5, -1), _Slot(0, 1, 2, -2)),
    "MatMulInteger": (_Slot(1, -1, 3, -1), _Slot(0, -1, 2, -2)),
    "ConvInteger": (_Slot(1, -1, 3, 0),),
    "DynamicQuantizeMatMul": (_Slot(1, 2, 3, -1),),
    "MatMulIntegerToFloat": (_Slot(1, 3, 5, -1),),
    "QAttention": (_Slot(1, 4, 7, -1),),
    "DynamicQuantizeLSTM": (_Slot(1, 8, 9, -1), _Slot(2, 10, 11, -1)),
}


# operator -> the inputs that are scales of activations
_ACTIVATION_SCALES: Mapping[str, tuple[int, ...]] = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 6),
    "QLinearMatMul": (1, 4, 6),
    "QGemm": (1, 7),
    "QLinearAdd": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
}


@dataclass
class _Graph:
    """Initializers and nodes of a model and its subgraphs, by name.

    Attributes:
        path: the model's file.
        tensors: every initializer, and every Constant node's tensor.
        nodes: every node.
        users: the nodes that take a value.
        makers: the node that makes a value.
        taken: names that belong to a weight.
    """

    path: Path
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    users: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def constant(self, node: onnx.NodeProto, place: int) -> onnx.TensorProto | None:
        """Return the constant at an input, None when there is none."""
        if not 0 <= place < len(node.input):
            return None
        return self.tensors.get(node.input[place])


def read_onnx(path: Path) -> Artefact:
    """Read a model's structure; external tensors are read when asked for.

    Raises:
        FileUnreadable, FormatNotRecognised, TruncatedFile, HostileFile: as `read_structure`.
    """
    model = read_structure(path)
    graph = _Graph(path)
    _collect(model.graph, graph)
    places = _Places(path, graph.tensors.values())
    found = [weight for node in graph.nodes for weight in _weights_of(node, graph)]
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
    warnings = tuple(_scale_warnings(graph, weight_scales))
    return Artefact(path, "ONNX", files, tuple(tensors), max(0, header), metadata, warnings)


def _scale_warnings(graph: _Graph, weight_scales: set[int]) -> Iterator[str]:
    """Name the scales of activations that are none; those of weights are looked at with them."""
    seen: set[int] = set()
    for node in graph.nodes:
        for place in _ACTIVATION_SCALES.get(node.op_type, ()):
            scale = graph.constant(node, place)
            if scale is None or id(scale) in weight_scales | seen:
                continue
            seen.add(id(scale))
            if scale.data_type in _SCALE_TYPES:
                fault = _fault_of(tensor_array(scale))
                if fault:
                    yield f"{node.op_type} {_called(node)!r}: its scale is {fault}"


def _called(node: onnx.NodeProto) -> str:
    return node.name or (node.output[0] if node.output else "")


def _fault_of(scale: Array) -> str:
    numbers = scale.astype(np.float32).reshape(-1)
    normal = 2.0**-14 if scale.dtype == np.float16 else 2.0**-126
    size = np.abs(numbers)
    for fault, found in (
        ("NaN: so is all behind it", np.isnan(numbers)),
        ("infinite: every value becomes zero or NaN", np.isinf(numbers)),
        ("zero: values are divided by it", numbers == 0),
        ("negative, which tools do not agree on", numbers < 0),
        (f"subnormal in {scale.dtype.name}: some tools flush it to zero", size < normal),
    ):
        if found.any():
            return fault
    return ""


def _collect(graph: onnx.GraphProto, into: _Graph) -> None:
    # nodes first, as they stand in the file: their constants' places are looked for in that order
    for node in graph.node:
        into.nodes.append(node)
        for name in node.input:
            into.users.setdefault(name, []).append(node)
        for name in node.output:
            into.makers[name] = node
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.type == onnx.AttributeProto.TENSOR:
                into.tensors.setdefault(node.output[0] if node.output else "", attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _collect(attribute.g, into)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    _collect(inner, into)
    for tensor in graph.initializer:
        into.tensors.setdefault(tensor.name, tensor)


class _Places:
    """Where tensors lie: external ones as stated, inline ones found in the model's file."""

    def __init__(self, path: Path, tensors: Iterable[onnx.TensorProto]) -> None:
        self.model = FileBytes(path)
        self._external: dict[str, FileBytes] = {}
        self._used: dict[str, int] = {}
        self._counted: set[int] = set()
        self._inline = self._found(path, tensors)

    def span(self, tensor: onnx.TensorProto) -> tuple[Span, ...]:
        """Return where the tensor's bytes lie, nothing when that can't be told."""
        if not is_external(tensor):
            at = self._inline.get(id(tensor))
            return () if at is None else (Span(self.model, at, len(tensor.raw_data)),)
        entries = external_entries(tensor)
        location = entries["location"]
        if location not in self._external:
            self._external[location] = FileBytes(Path(location))
        size = byte_count(tensor)
        self._used[location] = self._used.get(location, 0) + size
        return (Span(self._external[location], int(entries.get("offset") or 0), size),)

    def _found(self, path: Path, tensors: Iterable[onnx.TensorProto]) -> dict[int, int]:
        """Find inline tensors in the order that they are written in.

        What stands out of order is looked for from the start, but not for longer than reading
        the file a few times would take: that tensor's place is then left open.
        """
        found: dict[int, int] = {}
        behind, budget = 0, _SEARCHES * self.model.size
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            for tensor in tensors:
                raw = tensor.raw_data if tensor.HasField("raw_data") else b""
                if len(raw) < _FINDABLE or budget <= 0 or id(tensor) in found:
                    continue
                at = content.find(raw, behind)
                budget -= (at if at >= 0 else len(content)) - behind
                if at < 0:
                    at = content.find(raw, 0, behind + len(raw))
                    budget -= at if at >= 0 else behind
                if at >= 0:
                    found[id(tensor)] = at
                    behind = at + len(raw)
        return found

    def count(self, tensor: onnx.TensorProto) -> int:
        """Count the bytes that a tensor's numbers take, once: two weights may share a scale."""
        if id(tensor) in self._counted:
            return 0
        self._counted.add(id(tensor))
        if is_external(tensor):
            return byte_count(tensor)
        return len(tensor.raw_data) if tensor.HasField("raw_data") else tensor.ByteSize()

    def files(self) -> tuple[FileBytes, ...]:
        """Return the model's file and those beside it."""
        return (self.model, *self._external.values())

    def unused(self) -> int:
        """Count bytes of external files that no tensor of the model lies in."""
        return sum(
            max(0, file.size - self._used.get(name, 0)) for name, file in self._external.items()
        )


@dataclass(frozen=True, eq=False)
class _Weight:
    """Codes of a weight with what makes numbers of them, as tensors of the model."""

    name: str
    codes: onnx.TensorProto
    scale: onnx.TensorProto | None
    zero_point: onnx.TensorProto | None
    axis: int | None
    block_size: int
    form: str
    packed: "_Packed | None" = None


@dataclass(frozen=True)
class _Packed:
    """Codes of 2, 4 or 8 bits packed in bytes along the reduced axis.

    Attributes:
        shape: (out, in) of the weight.
        bits: width of a code.
    """

    shape: tuple[int, ...]
    bits: int


def _weights_of(node: onnx.NodeProto, graph: _Graph) -> Iterator[_Weight]:
    if node.op_type == "DequantizeLinear":
        yield from _dequantized(node, graph)
    elif node.op_type == "QGemm":
        axis = 0 if _attribute(node, "transB", 0) else 1
        yield from _beside(node, graph, _Slot(3, 4, 5, axis))
    elif node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
        yield from _bits(node, graph)
    elif node.op_type == "Cast":
        yield from _written_out(node, graph)
    for slot in _SLOTS.get(node.op_type, ()):
        yield from _beside(node, graph, slot)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    for attribute in node.attribute:
        if attribute.name == name and attribute.type == onnx.AttributeProto.INT:
            return int(attribute.i)
    return default


def _take(graph: _Graph, *tensors: onnx.TensorProto | None) -> bool:
    """Mark tensors as belonging to a weight; False when the codes, the first, already do."""
    first = tensors[0]
    if first is None or first.name in graph.taken:
        return False
    graph.taken.update(tensor.name for tensor in tensors if tensor is not None)
    return True


def _dequantized(node: onnx.NodeProto, graph: _Graph) -> Iterator[_Weight]:
    codes = graph.constant(node, 0)
    if codes is None and node.input and node.input[0] in graph.makers:
        maker = graph.makers[node.input[0]]
        codes = graph.constant(maker, 0) if maker.op_type == "Gather" else None
    scale, zero_point = graph.constant(node, 1), graph.constant(node, 2)
    if codes is None or scale is None or codes.data_type not in _CODE_TYPES:
        return
    if _take(graph, codes, scale, zero_point):
        axis, block_size = _attribute(node, "axis", 1), _attribute(node, "block_size", 0)
        yield _Weight(codes.name, codes, scale, zero_point, axis, block_size, "QDQ")


def _beside(node: onnx.NodeProto, graph: _Graph, slot: _Slot) -> Iterator[_Weight]:
    codes, zero_point = graph.constant(node, slot.codes), graph.constant(node, slot.zero_point)
    if codes is None or codes.data_type not in _CODE_TYPES:
        return
    scale = graph.constant(node, slot.scale) if slot.scale >= 0 else _scale_behind(node, graph)
    if _take(graph, codes, scale, zero_point):
        yield _Weight(codes.name, codes, scale, zero_point, slot.axis, 0, node.op_type)


def _scale_behind(node: onnx.NodeProto, graph: _Graph) -> onnx.TensorProto | None:
    """Follow integers to the Mul that makes floats of them, and find the constant there.

    The multiplier is the weight's scale, or the product of the activation's and the weight's.
    """
    value = node.output[0] if node.output else ""
    for _ in range(3):
        users = graph.users.get(value, [])
        if len(users) != 1 or not users[0].output:
            return None
        user = users[0]
        if user.op_type == "Mul":
            return _constant_factor(user, value, graph)
        if user.op_type not in ("Cast", "Add", "Reshape"):
            return None
        value = user.output[0]
    return None


def _constant_factor(node: onnx.NodeProto, value: str, graph: _Graph) -> onnx.TensorProto | None:
    other = next((name for name in node.input if name != value), "")
    if other in graph.tensors:
        return graph.tensors[other]
    maker = graph.makers.get(other)
    if maker is None or maker.op_type != "Mul":
        return None
    return next((graph.tensors[name] for name in maker.input if name in graph.tensors), None)


def _written_out(node: onnx.NodeProto, graph: _Graph) -> Iterator[_Weight]:
    """Find Cast, Sub or none, Mul over constants: a weight decoded by plain arithmetic."""
    codes = graph.constant(node, 0)
    if codes is None or codes.data_type not in _CODE_TYPES or not node.output:
        return
    users = graph.users.get(node.output[0], [])
    zero_point = None
    if len(users) == 1 and users[0].op_type == "Sub":
        zero_point = graph.constant(users[0], 1)
        users = graph.users.get(users[0].output[0], [])
    if len(users) != 1 or users[0].op_type != "Mul":
        return
    scale = next((graph.tensors[name] for name in users[0].input if name in graph.tensors), None)
    if scale is not None and _take(graph, codes, scale, zero_point):
        name = users[0].output[0] if users[0].output else codes.name
        yield _Weight(name, codes, scale, zero_point, None, 0, "Cast, Mul")


def _bits(node: onnx.NodeProto, graph: _Graph) -> Iterator[_Weight]:
    if node.op_type == "MatMulNBits":
        places, shape = (1, 2, 3), (_attribute(node, "N", 0), _attribute(node, "K", 0))
    else:
        places, shape = (0, 2, 3), None
    codes, scale, zero_point = (graph.constant(node, place) for place in places)
    if codes is None or scale is None:
        return
    bits, block = _attribute(node, "bits", 4), _attribute(node, "block_size", 128)
    if shape is None:
        if codes.data_type != _Proto.UINT8:
            if _take(graph, codes, scale, zero_point):
                axis = _attribute(node, "quantize_axis", 1)
                yield _Weight(codes.name, codes, scale, zero_point, axis, block, node.op_type)
            return
        shape = (*codes.dims[:-1], codes.dims[-1] * 8 // bits) if codes.dims else ()
    if bits not in (2, 4, 8) or block <= 0 or not shape or min(shape) <= 0:
        raise HostileFile(
            f"{node.op_type} {node.name!r} has impossible attributes",
            where=str(graph.path),
            got=f"bits {bits}, block_size {block}, shape {list(shape)}",
        )
    if _take(graph, codes, scale, zero_point):
        yield _Weight(
            codes.name, codes, scale, zero_point, -1, block, node.op_type, _Packed(shape, bits)
        )


def _stored(weight: _Weight, places: _Places) -> StoredTensor:
    if weight.packed is not None:
        return _stored_bits(weight, weight.packed, places)
    shape = tuple(weight.codes.dims)
    block = _block(weight, shape, str(places.model.path))
    scale, zeros = weight.scale, weight.zero_point
    step = block[0] if block and shape and block[0] < shape[0] else 1
    per_block_shape = tuple(-(-n // b) for n, b in zip(shape, block or (), strict=bool(block)))

    def part(tensor: onnx.TensorProto | None, first: int, last: int) -> Array | None:
        if tensor is None or block is None:
            return None
        items = tensor_array(tensor)
        table = items.reshape(per_block_shape if items.size > 1 else (1,) * len(shape))
        if not shape or table.shape[0] == 1:
            return table
        return table[first // step : -(-last // step)]

    def read(first: int, last: int) -> Values:
        codes = tensor_array(weight.codes)
        codes = _plain_integers(codes[first:last] if shape else codes)
        factor = part(scale, first, last)
        return Values(
            codes,
            block,
            None if factor is None else factor.astype(np.float32),
            part(zeros, first, last) if zeros is not None else None,
        )

    layout = Layout(
        _FORMATS.get(weight.codes.data_type, "unknown"),
        block,
        None if scale is None else _FORMATS.get(scale.data_type, "unknown"),
        "none" if zeros is None else "stored",
        weight.form,
    )
    note = "" if scale is not None else "its scale is not a constant of the graph"
    return StoredTensor(
        weight.name,
        shape,
        layout,
        _spans(weight, places),
        _parts(weight, places),
        read,
        0,
        step,
        note,
    )


def _plain_integers(codes: Array) -> Array:
    """Turn 4-bit integers of ml_dtypes into int8 or uint8, which numpy can count with."""
    if codes.dtype.name in ("int4", "int2"):
        return codes.astype(np.int8)
    if codes.dtype.name in ("uint4", "uint2"):
        return codes.astype(np.uint8)
    return codes


def _block(weight: _Weight, shape: tuple[int, ...], where: str) -> tuple[int, ...] | None:
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


def _stored_bits(weight: _Weight, packed: _Packed, places: _Places) -> StoredTensor:
    rows, columns = int(np.prod(packed.shape[:-1])), packed.shape[-1]
    blocks, bits, block = -(-columns // weight.block_size), packed.bits, weight.block_size
    scale, zeros = weight.scale, weight.zero_point
    bytes_a_row = byte_count(weight.codes) // rows
    fits = byte_count(weight.codes) == rows * bytes_a_row and bytes_a_row * 8 >= columns * bits
    if scale is None or not fits or int(np.prod(scale.dims)) != rows * blocks:
        raise HostileFile(
            f"the packed weight {weight.name!r} contradicts its operator",
            where=str(places.model.path),
            got=f"codes {list(weight.codes.dims)}, scales {list(scale.dims) if scale else None}",
            expected=f"{rows} rows of {columns} codes in {blocks} blocks",
        )

    def read(first: int, last: int) -> Values:
        stream = tensor_array(weight.codes).reshape(rows, bytes_a_row)[first:last]
        codes = unpack_fields(np.ascontiguousarray(stream), bits)[:, :columns]
        factor = tensor_array(scale).reshape(rows, blocks)[first:last].astype(np.float32)
        offsets = _packed_zeros(zeros, (rows, blocks), bits, where=str(places.model.path))
        if offsets is not None and offsets.ndim:
            offsets = offsets[first:last]
        return Values(codes, (1, block), factor, offsets)

    layout = Layout(
        f"uint{bits}",
        (1, block),
        _FORMATS.get(scale.data_type, "unknown"),
        f"at {1 << (bits - 1)}" if zeros is None else "stored",
        weight.form,
    )
    return StoredTensor(
        weight.name, (rows, columns), layout, _spans(weight, places), _parts(weight, places), read
    )


def _packed_zeros(
    zeros: onnx.TensorProto | None, blocks: tuple[int, int], bits: int, where: str
) -> Array:
    if zeros is None:
        return np.array(1 << (bits - 1), np.int32)
    items = tensor_array(zeros)
    if items.dtype == np.uint8 and items.size != blocks[0] * blocks[1]:
        items = unpack_fields(np.ascontiguousarray(items.reshape(blocks[0], -1)), bits)
        items = items[:, : blocks[1]].astype(np.int32)
    if items.size != blocks[0] * blocks[1]:
        raise HostileFile(f"zero points of {zeros.name!r} do not fit", where=where)
    return items.reshape(blocks)


def _spans(weight: _Weight, places: _Places) -> tuple[Span, ...]:
    tensors = (weight.codes, weight.scale, weight.zero_point)
    return tuple(span for t in tensors if t is not None for span in places.span(t))


def _parts(weight: _Weight, places: _Places) -> dict[Part, int]:
    parts = {Part.CODES: places.count(weight.codes)}
    if weight.scale is not None:
        parts[Part.SCALES] = places.count(weight.scale)
    if weight.zero_point is not None:
        parts[Part.ZERO_POINTS] = places.count(weight.zero_point)
    return parts


def _plain(tensor: onnx.TensorProto, name: str, places: _Places) -> StoredTensor:
    number_format = _FORMATS.get(tensor.data_type, "other")
    shape = tuple(tensor.dims)

    def read(first: int, last: int) -> Values:
        items = tensor_array(tensor)
        return Values(_plain_integers(items[first:last] if shape else items))

    return StoredTensor(
        name,
        shape,
        Layout(number_format),
        places.span(tensor),
        {part_of(number_format): places.count(tensor)},
        read,
    )
