"""Thirteen kinds of faults over two networks, as tools and people really make them.

Each leaves the float model's function (nearly) as it was, quantizes by ONNX Runtime's own
quantizer, and does its damage in one place.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
from tests.faults.surgery import (
    Array,
    change,
    constant,
    copied,
    left_in_float,
    node,
    put,
    put_pair_after,
)
from tests.models.copies import Copy, quantized
from tests.models.digits import held_out, images, residual_network
from tests.models.store import built

EXAMPLE = Path(str(resources.files("foldmark.demo")))
SAMPLES = 64


@dataclass(frozen=True)
class Planted:
    """A float model, its faulty int8 copy, and the culprit.

    site         name of the weight (in the float model) or of the activation that is to blame
    element      entries of the index of the element that set the scale: {axis: index}
    group        (axis, index) of the channel that carries the damage, where it is one channel
    cause        what most of the entry must be put down to
    """

    float_model: onnx.ModelProto
    faulty: onnx.ModelProto
    data: dict[str, Array]
    site: str
    element: dict[int, int] = field(default_factory=dict)
    group: tuple[int, int] | None = None
    cause: str = "rounding"


@cache
def _reader() -> onnx.ModelProto:
    return onnx.load(EXAMPLE / "model.onnx")


@cache
def _reader_data() -> dict[str, Array]:
    return {"pixels": np.load(EXAMPLE / "held_out.npz")["pixels"][:SAMPLES]}


def _reader_calibration() -> dict[str, Array]:
    from train_demo import digits

    return {"pixels": digits()[0][:256]}


def _images() -> dict[str, Array]:
    return {"image": held_out(SAMPLES)["image"]}


def _copy_of(
    model: onnx.ModelProto, name: str, copy: Copy, calibration: dict[str, Array]
) -> onnx.ModelProto:
    """Quantize the layers that multiply; the attention mask of the reader stays out of it."""
    path = built(f"planted-{name}.onnx", lambda target: onnx.save(model, target))
    return onnx.load(quantized(path, copy, calibration, ("MatMul", "Gemm", "Conv")))


def _reader_copy(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    return _copy_of(model, f"reader-{name}", Copy.QDQ, _reader_calibration())


@cache
def _sound_reader() -> onnx.ModelProto:
    return _reader_copy(_reader(), "sound")


@cache
def _residual() -> onnx.ModelProto:
    return onnx.load(residual_network())


def _residual_copy(model: onnx.ModelProto, name: str, copy: Copy = Copy.QDQ) -> onnx.ModelProto:
    return _copy_of(model, f"residual-{name}", copy, {"image": images()[0][:256]})


@cache
def _sound_residual() -> onnx.ModelProto:
    return _residual_copy(_residual(), "sound")


@cache
def _sound_residual_per_channel() -> onnx.ModelProto:
    return _residual_copy(_residual(), "sound", Copy.QDQ_PER_CHANNEL)


@cache
def _activations_alone() -> onnx.ModelProto:
    """The sound copy with its weights left in float: errors of activations stand out."""
    model = _sound_residual()
    for tensor in _residual().graph.initializer:
        model = left_in_float(model, tensor.name, _residual())
    return model


def _in_reader(
    plant: Callable[[onnx.ModelProto], None], site: str, cause: str = "rounding"
) -> Planted:
    """A fault of the quantized reader alone."""
    faulty = copied(_sound_reader())
    plant(faulty)
    return Planted(_reader(), faulty, _reader_data(), site, cause=cause)


def _in_residual(
    plant: Callable[[onnx.ModelProto], None],
    site: str,
    cause: str = "rounding",
    group: tuple[int, int] | None = None,
    sound: onnx.ModelProto | None = None,
) -> Planted:
    """A fault of the quantized residual network alone."""
    sound = sound or _sound_residual()
    faulty = copied(sound)
    plant(faulty)
    return Planted(_residual(), faulty, _images(), site, cause=cause, group=group)


def one_huge_weight() -> Planted:
    """One of 320 weights is 60 times the others, on a channel that is 60 times smaller."""
    model = copied(_reader())
    shrink = np.ones(32)
    shrink[7] = 1 / 60
    for name in ("norm.weight", "norm.bias"):
        change(model, name, lambda old: old * shrink)
    grow = np.ones((10, 32))
    grow[3, 7] = 60
    change(model, "classify.weight", lambda old: old * grow)
    faulty = _reader_copy(model, "huge-weight")
    return Planted(model, faulty, _reader_data(), "classify.weight", {0: 3, 1: 7})


def one_huge_activation_channel() -> Planted:
    """A LayerNorm channel is scaled by 60, and the next weight's row by 1/60."""
    model = copied(_reader())
    grow = np.ones(32)
    grow[11] = 60
    for name in ("blocks.1.attention_norm.weight", "blocks.1.attention_norm.bias"):
        change(model, name, lambda old: old * grow)
    change(model, "onnx::MatMul_272", lambda old: old / grow[:, None])
    faulty = _reader_copy(model, "huge-channel")
    site = "/blocks.1/attention_norm/LayerNormalization_output_0"
    return Planted(model, faulty, _reader_data(), site, {2: 11})


def a_clipped_range() -> Planted:
    """The range of an activation is an eighth of what the data needs."""
    site = "/blocks.0/Mul_1_output_0"
    return _in_reader(
        lambda model: change(model, f"{site}_scale", lambda old: old / 8), site, "clipping"
    )


def a_swapped_axis() -> Planted:
    """Weights are quantized per output channel, and the file says per input channel."""

    def plant(model: onnx.ModelProto) -> None:
        axis = node(model, "onnx::Conv_52_DequantizeLinear").attribute[0]
        assert axis.name == "axis"
        axis.i = 1

    return _in_residual(plant, "onnx::Conv_52", "", sound=_sound_residual_per_channel())


def a_bias_too_large_for_int32() -> Planted:
    """The scale of a bias is so small that its codes saturate at 2^31 - 1."""

    def plant(model: onnx.ModelProto) -> None:
        bias = constant(_residual(), "head.bias").astype(np.float64)
        scale = np.float32(np.abs(bias).max() / 2**31 / 6)
        codes = np.clip(np.rint(bias / scale), -(2**31), 2**31 - 1).astype(np.int32)
        put(model, "head.bias_quantized", codes)
        change(model, "head.bias_quantized_scale", lambda old: np.full(old.shape, scale))

    return _in_residual(plant, "head.bias", "clipping")


def a_dead_channel() -> Planted:
    """One output channel has a scale of zero: its weights all unfold to zero."""

    def plant(model: onnx.ModelProto) -> None:
        def kill(scale: Array) -> Array:
            scale[21] = 0
            return scale

        change(model, "onnx::Conv_58_scale", kill)

    sound = _sound_residual_per_channel()
    return _in_residual(plant, "onnx::Conv_58", "", (0, 21), sound)


def a_shared_scale_over_a_concat() -> Planted:
    """Boxes up to hundreds and scores up to one are joined, and share one scale."""
    model = copied(_residual())
    pooled = node(model, "/ReduceMean").output[0]
    head = node(model, "/head/Gemm")
    put(model, "large", np.float32(200))
    put(model, "back", np.repeat(np.float32([1 / 200, 1]), 32))
    at = list(model.graph.node).index(head)
    make = onnx.helper.make_node
    for offset, joining in enumerate(
        (
            make("Mul", [pooled, "large"], ["boxes"], "/Boxes"),
            make("Concat", ["boxes", pooled], ["joined"], "/Join", axis=1),
            make("Mul", ["joined", "back"], ["apart"], "/Apart"),
        )
    ):
        model.graph.node.insert(at + offset, joining)
    head.input[0] = "apart"
    change(model, "head.weight", lambda old: np.concatenate([old / 4, old * 3 / 4], 1))
    faulty = copied(_residual_copy(model, "concat"))
    highest = constant(faulty, "apart_scale") * 200
    put_pair_after(faulty, "joined", highest, constant(faulty, "apart_zero_point"))
    return Planted(model, faulty, _images(), "joined")


def symmetric_where_all_is_positive() -> Planted:
    """An activation after Relu gets half the codes, with a bit of headroom to a power of two."""
    site = "/block1/Relu_1_output_0"

    def plant(model: onnx.ModelProto) -> None:
        highest = constant(model, f"{site}_scale").astype(np.float64) * 255
        put(model, f"{site}_scale", np.float32(2 ** np.ceil(np.log2(2 * highest / 127))))
        put(model, f"{site}_zero_point", np.int8(0))

    return _in_residual(plant, site, sound=_activations_alone())


def a_zero_point_off_by_one() -> Planted:
    """Codes are written with one zero point and read with the next."""
    site = "/Relu_output_0"

    def plant(model: onnx.ModelProto) -> None:
        zero = constant(model, f"{site}_zero_point")
        put(model, "zero_point_read", (zero + 1).astype(zero.dtype))
        node(model, f"{site}_DequantizeLinear").input[2] = "zero_point_read"

    return _in_residual(plant, site, "zero_point")


def a_scale_stored_in_float16() -> Planted:
    """A scale of 2.6e-7 is written in float16, whose smallest steps there are 6e-8."""
    model = copied(_reader())
    norm, weight = "blocks.1.feed_forward_norm", "onnx::MatMul_276"
    for name in (f"{norm}.weight", f"{norm}.bias"):
        change(model, name, lambda old: old * 2.0**14)
    change(model, weight, lambda old: old / 2.0**14)
    faulty = copied(_reader_copy(model, "tiny-scale"))
    change(faulty, f"{weight}_scale", np.float16)
    return Planted(model, faulty, _reader_data(), weight, cause="scale")


def one_layer_at_four_bits() -> Planted:
    """One weight is rounded to 15 codes, the others to 255."""
    weight = "onnx::Conv_61"

    def plant(model: onnx.ModelProto) -> None:
        values = constant(_residual(), weight)
        scale = np.float32(np.abs(values).max() / 7)
        put(model, f"{weight}_quantized", np.rint(values / scale).astype(np.int8))
        put(model, f"{weight}_scale", scale)

    return _in_residual(plant, weight)


def ranges_from_the_wrong_data() -> Planted:
    """The input was calibrated on images a quarter as bright."""
    return _in_residual(
        lambda model: change(model, "image_scale", lambda old: old / 4), "image", "clipping"
    )


def codes_cut_off_instead_of_rounded() -> Planted:
    """A weight's codes are truncated toward zero, and few of them."""
    weight = "onnx::MatMul_276"

    def plant(model: onnx.ModelProto) -> None:
        values = constant(_reader(), weight)
        scale = np.float32(np.abs(values).max() / 15)
        put(model, f"{weight}_quantized", np.trunc(values / scale).astype(np.int8))
        put(model, f"{weight}_scale", scale)

    return _in_reader(plant, weight, "")


FAULTS: tuple[Callable[[], Planted], ...] = (
    one_huge_weight,
    one_huge_activation_channel,
    a_clipped_range,
    a_swapped_axis,
    a_bias_too_large_for_int32,
    a_dead_channel,
    a_shared_scale_over_a_concat,
    symmetric_where_all_is_positive,
    a_zero_point_off_by_one,
    a_scale_stored_in_float16,
    one_layer_at_four_bits,
    ranges_from_the_wrong_data,
    codes_cut_off_instead_of_rounded,
)
