"""What a PyTorch pickle may ask for by name, and the record that each name makes.

    (storage type, key, device, count)        a persistent id: one member of the archive
    _rebuild_tensor_v2(storage, first item, shape, strides, ...)

The table is closed. Each name leads to a function here that looks at its arguments and keeps them;
none of PyTorch's own is imported or called.
Source: torch._utils, torch._weights_only_unpickler and torch.serialization.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from foldmark.errors import NotSupported

__all__ = ["NAMES", "Misused", "Named", "Other", "Storage", "Table", "Tensor", "storage_of"]

# No count, offset or stride of an honest file comes near.
_LARGEST = 1 << 62


@dataclass(frozen=True)
class Storage:
    """One member of the archive with numbers in it.

    Attributes:
        key: its name there.
        number_format: of its items; "" where tensors tell it and items are bytes.
        items: how many it holds.
    """

    key: str
    number_format: str
    items: int


@dataclass(frozen=True)
class Tensor:
    """Where the items of a tensor lie in its storage, and what scales them.

    Attributes:
        storage: what it looks at.
        number_format: of its items; with a scale, of its codes.
        first: the item of the storage that index 0 leads to.
        shape, strides: as PyTorch has them, in items.
        scale: of quantized tensors: one number, or a tensor of one an index of `axis`.
        zero_point: likewise.
        axis: what scales run along, -1 for one scale.
    """

    storage: Storage
    number_format: str
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scale: "float | Tensor | None" = None
    zero_point: "int | Tensor | None" = None
    axis: int = -1


@dataclass(eq=False)
class Table:
    """A dictionary's pairs in the order that they were set in; keys need not be hashable."""

    pairs: list[tuple[object, object]] = field(default_factory=list)


@dataclass(frozen=True)
class Named:
    """Something that a pickle may ask for by name.

    Attributes:
        name: module and name.
        make: turns the arguments of a call into a record; None for what nobody calls.
    """

    name: str
    make: Callable[[tuple[object, ...]], object] | None = None


class Other:
    """Something that holds no tensor."""


_STORAGES: Mapping[str, str] = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
    "QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32",
    "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip
_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "uint16", "uint32", "uint64", "bool", "complex64", "complex128", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "complex32",
)  # fmt: skip
_QUANTIZERS = ("per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams")


def _tensor(arguments: tuple[object, ...]) -> object:
    """Record _rebuild_tensor(_v2)(storage, first, shape, strides, requires_grad, hooks, flags)."""
    match arguments:
        case (Storage() as storage, int(first), tuple(shape), tuple(strides)):
            pass
        case (Storage() as storage, int(first), tuple(shape), tuple(strides), bool(), _):
            pass
        case (Storage() as storage, int(first), tuple(shape), tuple(strides), bool(), _, flags):
            _refuse_flags(flags)
        case _:
            raise Misused
    if not storage.number_format:
        raise Misused
    return _placed(storage, storage.number_format, first, shape, strides)


def _tensor_with_dtype(arguments: tuple[object, ...]) -> object:
    """Record _rebuild_tensor_v3(storage, first, shape, strides, grad, hooks, dtype, flags)."""
    match arguments:
        case (
            Storage() as storage, int(first), tuple(shape), tuple(strides), bool(), _,
            Named(make=None) as dtype, *flags,
        ):  # fmt: skip
            pass
        case _:
            raise Misused
    if storage.number_format or len(flags) > 1:
        raise Misused
    _refuse_flags(flags[0] if flags else None)
    number_format = dtype.name.removeprefix("torch.")
    if number_format not in _DTYPES:
        raise Misused
    return _placed(storage, number_format, first, shape, strides)


def _quantized(arguments: tuple[object, ...]) -> object:
    """Record _rebuild_qtensor(storage, first, shape, strides, quantizer, grad, hooks)."""
    match arguments:
        case (
            Storage() as storage, int(first), tuple(shape), tuple(strides), tuple(quantizer),
            bool(), _,
        ):  # fmt: skip
            placed = _placed(storage, storage.number_format, first, shape, strides)
        case _:
            raise Misused
    if storage.number_format not in ("int8", "uint8", "int32", "quint4x2", "quint2x4"):
        raise Misused
    match quantizer:
        case (Named(name="torch.per_tensor_affine"), float(scale), int(zero_point)):
            return replace(placed, scale=scale, zero_point=zero_point)
        case (
            Named(
                name="torch.per_channel_affine" | "torch.per_channel_affine_float_qparams"
            ),
            Tensor() as scales, Tensor() as zero_points, int(axis),
        ):  # fmt: skip
            return replace(placed, scale=scales, zero_point=zero_points, axis=axis)
    raise Misused


def _parameter(arguments: tuple[object, ...]) -> object:
    """Record _rebuild_parameter(data, requires_grad, hooks), or one with attributes behind."""
    match arguments:
        case (Tensor() as data, bool(), _) | (Tensor() as data, bool(), _, _):
            return data
        case (Tensor() as data,) | (Tensor() as data, bool()):
            return data
    raise Misused


def _with_attributes(arguments: tuple[object, ...]) -> object:
    """Record _rebuild_from_type_v2(function, type, arguments, attributes) of tensors' own types."""
    match arguments:
        case (Named(make=make), Named(), tuple(inner), _) if make is not None:
            made = make(inner)
            if isinstance(made, Tensor):
                return made
    raise Misused


def _placed(
    storage: Storage,
    number_format: str,
    first: int,
    shape: tuple[object, ...],
    strides: tuple[object, ...],
) -> Tensor:
    sizes, steps = _sizes(shape), _sizes(strides)
    if len(sizes) != len(steps) or not 0 <= first < _LARGEST:
        raise Misused
    return Tensor(storage, number_format, int(first), sizes, steps)


def _sizes(numbers: tuple[object, ...]) -> tuple[int, ...]:
    found = tuple(int(n) for n in numbers if isinstance(n, int) and 0 <= n < _LARGEST)
    if len(found) != len(numbers):
        raise Misused
    return found


def _refuse_flags(flags: object) -> None:
    """Refuse views that are conjugated or negated when somebody looks."""
    match flags:
        case None | Table(pairs=[]):
            return
    raise NotSupported("not supported: PyTorch tensors that are conjugated or negated when read")


def _table(arguments: tuple[object, ...]) -> object:
    """Record OrderedDict(), or OrderedDict(pairs) as the oldest pickles have it."""
    match arguments:
        case ():
            return Table()
        case (list(pairs),) if all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            return Table([(p[0], p[1]) for p in pairs if isinstance(p, list | tuple)])
    raise Misused


def _other(_: tuple[object, ...]) -> object:
    return Other()


def _size(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (list(sizes) | tuple(sizes),):
            return tuple(sizes)
    raise Misused


def _unread(what: str) -> Callable[[tuple[object, ...]], object]:
    def refuse(_: tuple[object, ...]) -> object:
        raise NotSupported(f"not supported: {what}")

    return refuse


class Misused(Exception):
    """A name of the table is called with arguments that it does not take."""


def _named(**makers: Callable[[tuple[object, ...]], object]) -> dict[str, Named]:
    return {
        f"torch._utils.{name}": Named(f"torch._utils.{name}", make) for name, make in makers.items()
    }


NAMES: Mapping[str, Named] = {
    **_named(
        _rebuild_tensor=_tensor,
        _rebuild_tensor_v2=_tensor,
        _rebuild_tensor_v3=_tensor_with_dtype,
        _rebuild_qtensor=_quantized,
        _rebuild_parameter=_parameter,
        _rebuild_parameter_with_state=_parameter,
        _rebuild_sparse_tensor=_unread("sparse PyTorch tensors"),
        _rebuild_nested_tensor=_unread("nested PyTorch tensors"),
        _rebuild_meta_tensor_no_storage=_unread("PyTorch tensors without numbers (meta)"),
    ),
    **{
        name: Named(name, make)
        for name, make in {
            "torch._tensor._rebuild_from_type_v2": _with_attributes,
            "torch.nn.parameter.Parameter": _parameter,
            "collections.OrderedDict": _table,
            "collections.Counter": _other,
            "torch.Size": _size,
            "torch.device": _other,
            "torch.serialization._get_layout": _other,
            "_codecs.encode": _other,
            "builtins.bytearray": _other,
            "builtins.set": _other,
            "builtins.complex": _other,
        }.items()
    },
    **{
        name: Named(name)
        for name in (
            "torch.Tensor",
            "torch.nn.parameter.Buffer",
            "torch.storage.UntypedStorage",
            *(f"torch.{kind}Storage" for kind in _STORAGES),
            *(f"torch.{dtype}" for dtype in _DTYPES),
            *(f"torch.{quantizer}" for quantizer in _QUANTIZERS),
        )
    },
}


def storage_of(stated: object) -> Storage:
    """Record the storage that a persistent id stands for.

    Raises:
        Misused: an id of another form.
    """
    match stated:
        case ("storage", Named(name=name), str(key), str(), int(items)) if (
            0 <= items < _LARGEST and name.endswith("Storage")
        ):
            kind = name.removeprefix("torch.").removesuffix("Storage")
            return Storage(key, _STORAGES.get(kind, ""), items)
    raise Misused
