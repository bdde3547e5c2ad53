"""Which kernel of OpenVINO executed each multiply-accumulate, from its executed graph."""

import math
from collections import Counter
from collections.abc import Sequence

import onnx

from foldmark.proof.kernels import Executor, Kernels, LostFusion, Product, decoded_at_load
from foldmark.proof.unfused import Unfused
from foldmark.runtimes.openvino import Layer

__all__ = ["kernels_of_layers"]

_PRODUCTS = {
    "FullyConnected", "MatMul", "Convolution", "Deconvolution", "RNNSeq", "RNNCell",
    "FullyConnectedCompressed", "MatMulCompressed",
}  # fmt: skip
_RECURRENT = {"RNNSeq", "RNNCell"}
_CONVERSIONS = {"FakeQuantize", "Quantize", "Convert"}
_PASSES_ON = {"Transpose", "Reorder", "Reshape", "Convert", "Eltwise", "Subgraph"}
_FUSIONS = {"MVN", "Gelu", "ScaledDotProductAttention", "MHA", "RMS", "RoPE", "LLMMLP"}
_FROM_CODES = (Executor.FLOAT_UNPACKED, Executor.FLOAT_DEQUANTIZED, Executor.FLOAT_DECODED)
_INTEGER_SUFFIXES = ("I8", "i8", "u8")
_CODES = {"u8", "i8", "I8", "u4", "i4"}
_BODIES = {"If", "Loop", "TensorIterator"}


def kernels_of_layers(
    original: onnx.ModelProto, layers: Sequence[Layer], float_layers: Sequence[Layer] = ()
) -> Kernels:
    """Assign every multiply-accumulate of a run in OpenVINO to what executed it.

    Args:
        original: the model as stored.
        layers: what OpenVINO executed of it.
        float_layers: what it executed of the float model, to see which fusions are gone.

    The bodies of If, Loop and Scan are not in its executed graph: `hidden` names them.
    """
    known = {layer.name: layer for layer in layers}
    products, conversion, other = [], 0.0, 0.0
    left: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for layer in layers:
        if layer.operator in _PRODUCTS:
            product = _product(layer, known, original)
            products.append(product)
            if product.executor in _FROM_CODES:
                key = layer.operator, f"OpenVINO chose the kernel {layer.primitive}"
                left[key] += 1
                examples.setdefault(key, layer.name)
        elif layer.operator in _CONVERSIONS or _is_conversion(layer):
            conversion += layer.seconds
        else:
            other += layer.seconds
    return Kernels(
        tuple(products),
        conversion,
        other,
        tuple(Unfused(*key, count, examples[key]) for key, count in left.most_common()),
        _lost(layers, float_layers),
        tuple(layer.name for layer in layers if layer.operator in _BODIES),
    )


def _is_conversion(layer: Layer) -> bool:
    """Return whether a layer only changes type or layout between two precisions."""
    return layer.operator == "Reorder" and layer.precision in (_CODES | {"i32"})


def _product(layer: Layer, known: dict[str, Layer], original: onnx.ModelProto) -> Product:
    weight = _weight(layer, known)
    stored = 0
    if weight is not None:
        index = layer.sources.index(weight) if weight in layer.sources else 1
        stored = math.prod(layer.input_shapes[index])
    executor = _executor(layer, weight, known, original)
    return Product(layer.name, layer.operator, executor, _macs(layer), layer.seconds, stored)


def _weight(layer: Layer, known: dict[str, Layer]) -> str | None:
    """Return the source of a layer that is computed from stored values alone, None without one."""
    places = range(1, len(layer.sources)) if layer.operator in _RECURRENT else (1, 0)
    for place in places:
        if place < len(layer.sources) and len(layer.input_shapes[place]) > 1:
            name = layer.sources[place]
            if _constants(name, known):
                return name
    return None


def _constants(name: str, known: dict[str, Layer]) -> list[Layer]:
    """Return the stored values that a layer is computed from; none when the input takes part."""
    layer = known.get(name)
    if layer is None:
        return []
    if layer.operator == "Const":
        return [layer]
    if layer.operator not in _PASSES_ON:
        return []
    found = []
    for source in layer.sources:
        behind = _constants(source, known)
        if not behind:
            return []
        found += behind
    return found


def _executor(
    layer: Layer, weight: str | None, known: dict[str, Layer], original: onnx.ModelProto
) -> Executor:
    if weight is None:
        return Executor.FLOAT_ACTIVATIONS
    if layer.primitive.endswith(_INTEGER_SUFFIXES):
        return Executor.INTEGER
    if known[weight].precision in _CODES:
        return Executor.FLOAT_UNPACKED
    if _runs_each_time(weight, known):
        return Executor.FLOAT_DEQUANTIZED
    return Executor.FLOAT_DECODED if decoded_at_load(original, layer.origins) else Executor.FLOAT


def _runs_each_time(name: str, known: dict[str, Layer]) -> bool:
    """Return whether anything between the stored values and a product was executed."""
    layer = known[name]
    if layer.operator == "Const":
        return False
    return layer.seconds > 0 or any(_runs_each_time(source, known) for source in layer.sources)


def _macs(layer: Layer) -> int:
    """Return the multiply-accumulates of one run, from the shapes that were seen."""
    if not layer.output_shapes or len(layer.input_shapes) < 2:
        return 0
    first, second, made = layer.input_shapes[0], layer.input_shapes[1], layer.output_shapes[0]
    if layer.operator == "Convolution":
        kept = 2 if len(second) > len(made) else 1  # groups stand on an axis of their own
        return math.prod(made) * math.prod(second[kept:])
    if layer.operator == "Deconvolution":
        kept = 2 if len(second) > len(made) else 1
        return math.prod(first) * math.prod(second[kept:])
    if layer.operator in _RECURRENT:
        steps = math.prod(first[:-1])
        return steps * sum(math.prod(each) for each in layer.input_shapes[2:] if len(each) == 3)
    # (m, k) by (k, n), whichever of them lies transposed: k k = m k * k n / (m n).
    one, two, gives = (math.prod(each[-2:]) for each in (first, second, made))
    inner = math.isqrt(one * two // gives) if gives else 0
    return math.prod(made) * inner


def _lost(layers: Sequence[Layer], before: Sequence[Layer]) -> tuple[LostFusion, ...]:
    now, then = (Counter(layer.operator for layer in each) for each in (layers, before))
    return tuple(
        LostFusion(operator, then[operator], now[operator])
        for operator in sorted(_FUSIONS)
        if now[operator] < then[operator]
    )
