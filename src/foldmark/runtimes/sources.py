"""Where samples come from: files, folders, functions of the user's, a random generator."""

import importlib.util
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.errors import (
    BadInput,
    DataMismatch,
    FileUnreadable,
    FormatNotRecognised,
    NoData,
    TruncatedFile,
)
from foldmark.runtimes.inputs import ModelInput, model_inputs

__all__ = [
    "Arrays",
    "FunctionData",
    "RandomData",
    "called",
    "function_chunks",
    "npz_paths",
    "random_arrays",
    "read_npz",
]

Arrays = Mapping[str, NDArray[np.generic]]

# Size given to an axis that the model leaves free, in random data.
_FREE_AXIS = 32
_HEADER_READERS: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class RandomData:
    """Random samples: standard normal floats, uniform integers; marked random in every report.

    Attributes:
        samples: how many.
        seed: of the generator; the same seed gives the same samples.
    """

    samples: int
    seed: int = 0


@dataclass(frozen=True)
class FunctionData:
    """A function of the user's that returns an iterable of dicts of arrays.

    It is called anew for every pass over the data.

    Attributes:
        path: the Python file.
        function: the function's name in it.
    """

    path: Path
    function: str


def npz_paths(path: Path) -> tuple[Path, ...]:
    """Return the .npz files of a folder by name, or the one file itself.

    Raises:
        FileUnreadable: there is nothing at the path.
        NoData: a folder without .npz files.
    """
    if path.is_dir():
        found = tuple(sorted(path.glob("*.npz")))
        if not found:
            raise NoData("the folder holds no .npz file", where=str(path))
        return found
    if not path.is_file():
        raise FileUnreadable("no such file", where=str(path))
    return (path,)


def read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the named arrays of an .npz file; object arrays are refused.

    Raises:
        FormatNotRecognised: not a zip of .npy arrays.
        TruncatedFile: an array's header promises more bytes than the file holds.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_member(archive, member, path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise FormatNotRecognised(
            "not an .npz file of plain arrays",
            where=str(path),
            got=str(error),
            todo="write it with numpy.savez(file, input_name=array, ...)",
        ) from None
    except OSError as error:
        raise FileUnreadable(str(error.strerror or error), where=str(path)) from None


def function_chunks(source: FunctionData) -> Callable[[], Iterator[Arrays]]:
    """Return a callable that calls the user's function anew and yields its dicts.

    Raises:
        FileUnreadable: there is no such file.
        BadInput: the file can't be imported or has no such function; while iterating, the
            function itself raised.
    """
    function = _import_function(source)
    where = f"{source.path}:{source.function}"

    def chunks() -> Iterator[Arrays]:
        try:
            yield from called(function)
        except Exception as error:
            raise BadInput(
                f"the data function raised {type(error).__name__}: {error}", where=where
            ) from error

    return chunks


def called(function: Callable[[], Any]) -> Iterator[Arrays]:
    """Return what the function returns as an iterator; a single dict is one chunk."""
    result = function()
    return iter([result]) if isinstance(result, Mapping) else iter(result)


def random_arrays(source: RandomData, model: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """Return random arrays for the model's inputs.

    Floats are standard normal, integers uniform below the smallest table that they index (else
    below 2), names with "mask" are all ones, names with "type" all zeros; an axis that the
    model leaves free has 32 elements, the first counts the samples.

    Raises:
        NoData: less than one sample is asked for.
        BadInput: more than memory holds.
    """
    if source.samples < 1:
        raise NoData("random data needs at least one sample", got=str(source.samples))
    generator = np.random.default_rng(source.seed)
    inputs = model_inputs(model)
    # A model that fixes its batch can only be fed whole batches.
    fixed = max((each.batch or 1 for each in inputs), default=1)
    samples = -(-source.samples // fixed) * fixed
    try:
        return {
            each.name: _random(each, samples, _index_bound(model, each.name), generator)
            for each in inputs
        }
    except (MemoryError, ValueError, OverflowError):
        raise BadInput(
            "so many random samples do not fit into memory", got=f"{source.samples:,}"
        ) from None


def _random(
    each: ModelInput, samples: int, bound: int, generator: np.random.Generator
) -> NDArray[np.generic]:
    axes = (None, None) if each.shape is None else each.shape
    shape = [size if isinstance(size, int) else _FREE_AXIS for size in axes]
    if shape:
        shape[0] = samples
    if "mask" in each.name.lower():
        return np.ones(shape, each.dtype)
    if "type" in each.name.lower():
        return np.zeros(shape, each.dtype)
    if each.dtype.kind in "iub":
        return generator.integers(0, bound, shape).astype(each.dtype)
    return generator.standard_normal(shape).astype(each.dtype)


def _index_bound(model: onnx.ModelProto, name: str) -> int:
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    # Dequantized tables: follow the first input back to the initializer.
    origin = {out: node.input[0] for node in model.graph.node for out in node.output if node.input}
    bounds = []
    for node in model.graph.node:
        if node.op_type in ("Gather", "GatherBlockQuantized") and node.input[1] == name:
            table = node.input[0]
            while table in origin and table not in rows:
                table = origin[table]
            if table in rows:
                bounds.append(int(rows[table]))
    return min(bounds, default=2)


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        reader = _HEADER_READERS.get(version)
        if reader is None:
            raise ValueError(f"array format version {version}")
        shape, _, dtype = reader(stream)
    promised = dtype.itemsize
    for size in shape:
        promised *= size
    if promised > member.file_size:
        raise TruncatedFile(
            f"array {member.filename!r} promises more than the file holds",
            where=str(path),
            got=f"{member.file_size} bytes",
            expected=f"{promised} bytes",
        )


def _import_function(source: FunctionData) -> Callable[[], Any]:
    if not source.path.is_file():
        raise FileUnreadable("no such file", where=str(source.path))
    spec = importlib.util.spec_from_file_location(source.path.stem, source.path)
    if spec is None or spec.loader is None:
        raise BadInput("not a Python file", where=str(source.path))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"importing it raised {type(error).__name__}: {error}", where=str(source.path)
        ) from error
    function = getattr(module, source.function, None)
    if not callable(function):
        known = sorted(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
        raise DataMismatch(
            f"no function {source.function!r}",
            where=str(source.path),
            expected=f"one of {', '.join(known) or '(the file defines none)'}",
        )
    found: Callable[[], Any] = function
    return found
