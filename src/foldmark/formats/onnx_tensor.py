"""ONNX tensors: checked against their own header, read into numpy without needless copies."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from foldmark.errors import HostileFile

__all__ = [
    "LISTED",
    "all_tensors",
    "byte_count",
    "check_header",
    "check_inline",
    "element_count",
    "external_entries",
    "is_external",
    "is_listed",
    "model_tensors",
    "tensor_array",
    "tensor_dtype",
]

# Elements that share one byte; every other type has whole bytes.
_PACKED: dict[int, int] = {
    number: per_byte
    for name, per_byte in (
        ("INT4", 2),
        ("UINT4", 2),
        ("FLOAT4E2M1", 2),
        ("INT2", 4),
        ("UINT2", 4),
    )
    if (number := getattr(onnx.TensorProto, name, None)) is not None
}

_KNOWN_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


LISTED: Final = "listed"
"""Key of the entry that says: the bytes are a list whose numbers take as many as each needs."""


def is_external(tensor: onnx.TensorProto) -> bool:
    """True when the tensor's bytes lie in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def external_entries(tensor: onnx.TensorProto) -> dict[str, str]:
    """Return the tensor's external_data entries; a repeated key keeps its last value."""
    return {entry.key: entry.value for entry in tensor.external_data}


def is_listed(tensor: onnx.TensorProto) -> bool:
    """True when `read_in_place` left the tensor in its file as a list of numbers."""
    return is_external(tensor) and any(entry.key == LISTED for entry in tensor.external_data)


def element_count(tensor: onnx.TensorProto) -> int:
    """Return the product of the tensor's dimensions."""
    return math.prod(tensor.dims)


def byte_count(tensor: onnx.TensorProto) -> int:
    """Return how many bytes the tensor's elements take in raw form (packed types rounded up)."""
    per_byte = _PACKED.get(tensor.data_type)
    if per_byte is not None:
        return -(-element_count(tensor) // per_byte)
    size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return element_count(tensor) * int(size)


def check_header(tensor: onnx.TensorProto, where: str) -> None:
    """Refuse a negative dimension or an element type that ONNX does not have.

    Raises:
        HostileFile: naming the tensor.
    """
    if any(size < 0 for size in tensor.dims):
        raise HostileFile(
            f"tensor {tensor.name!r} has a negative dimension",
            where=where,
            got=str(list(tensor.dims)),
        )
    if tensor.data_type not in _KNOWN_TYPES:
        raise HostileFile(
            f"tensor {tensor.name!r} has an unknown element type",
            where=where,
            got=str(tensor.data_type),
            todo="a newer onnx package may know it",
        )


def check_inline(tensor: onnx.TensorProto, where: str) -> None:
    """Check that a tensor stored inside the model holds as many elements as its shape says.

    Raises:
        HostileFile: naming the tensor, with the bytes found and needed.
    """
    check_header(tensor, where)
    if tensor.data_type == onnx.TensorProto.STRING:
        found, needed, unit = len(tensor.string_data), element_count(tensor), "strings"
    elif tensor.HasField("raw_data"):
        found, needed, unit = len(tensor.raw_data), byte_count(tensor), "bytes"
    else:
        found, needed, unit = *_typed_counts(tensor), "elements"
    if found != needed:
        raise HostileFile(
            f"tensor {tensor.name!r} does not hold what its shape {list(tensor.dims)} says",
            where=where,
            got=f"{found} {unit}",
            expected=f"{needed}",
        )


def _typed_counts(tensor: onnx.TensorProto) -> tuple[int, int]:
    """Return entries found and needed in the field that holds a tensor without raw bytes."""
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    found = len(getattr(tensor, field))
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return found, 2 * element_count(tensor)
    return found, -(-element_count(tensor) // _PACKED.get(tensor.data_type, 1))


def tensor_array(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    """Return the tensor's elements as a read-only array of its own dtype.

    A tensor left in its file by `read_model` is memory mapped, so that only the pages that
    are used are read. Types numpy lacks (bfloat16, float8, int4) come as ml_dtypes.

        ->  tensor.dims, the dtype of the elements
    """
    if is_external(tensor):
        return _mapped(tensor)
    if tensor.HasField("raw_data") and tensor.data_type not in _PACKED:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.frombuffer(tensor.raw_data, dtype=dtype.newbyteorder("<")).reshape(tensor.dims)
    return numpy_helper.to_array(tensor)


def _mapped(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    entries = external_entries(tensor)
    path, offset = Path(entries["location"]), int(entries.get("offset", "0"))
    size = byte_count(tensor)
    dtype = tensor_dtype(tensor)
    raw: NDArray[np.uint8]
    if size == 0:
        raw = np.zeros(0, dtype=np.uint8)
    elif offset % dtype.itemsize:
        # Inside a model's own file weights begin anywhere; kernels want them at multiples of a
        # number. Reading them costs no walk through mapped pages, as copying would.
        raw = np.fromfile(path, np.uint8, size, offset=offset)
        raw.flags.writeable = False
    else:
        raw = np.memmap(path, np.uint8, "r", offset, (size,))
    if tensor.data_type in _PACKED:
        inline = onnx.TensorProto(
            data_type=tensor.data_type, dims=tensor.dims, raw_data=raw.tobytes()
        )
        return numpy_helper.to_array(inline)
    return raw.view(dtype).reshape(tensor.dims)


def tensor_dtype(tensor: onnx.TensorProto) -> np.dtype[np.generic]:
    """Return the dtype of a tensor's elements."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph: initializers, sparse ones, attributes, subgraphs' too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: object) -> Iterator[onnx.TensorProto]:
    for node in nodes:  # type: ignore[attr-defined]
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.type == onnx.AttributeProto.TENSOR:
        yield attribute.t
    elif attribute.type == onnx.AttributeProto.TENSORS:
        yield from attribute.tensors
    elif attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
        yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
    elif attribute.type == onnx.AttributeProto.GRAPH:
        yield from all_tensors(attribute.g)
    elif attribute.type == onnx.AttributeProto.GRAPHS:
        for graph in attribute.graphs:
            yield from all_tensors(graph)


def model_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model, those of its functions included."""
    yield from all_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)
