"""Small convolutional networks with kinks, and their int8 copies."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from tests.graphs.networks import Network, draw


@dataclass(frozen=True)
class Block:
    """A convolution and what follows it.

    Attributes:
        kernel: side of its square kernel.
        channels: channels out.
        group: groups of channels.
        stride: of both axes.
        follow: writes what follows, given the network, the value and a name; nothing when None.
    """

    kernel: int
    channels: int
    group: int = 1
    stride: int = 1
    follow: Callable[[Network, str, str], str] | None = None


def pair(blocks: tuple[Block, ...], pool: str = "mean") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a float network of these blocks on images of (3, 16, 16), and its int8 copy."""
    models = []
    for is_quantized in (False, True):
        net = Network(17)
        x = net.input("image", ["n", 3, 16, 16])
        channels = 3
        for i, block in enumerate(blocks):
            x = _convolved(net, x, i, block, channels, is_quantized=is_quantized)
            if block.follow is not None:
                x = block.follow(net, x, f"follow{i}")
            channels = block.channels // (2 if block.follow is larger_half else 1)
        operator = {"mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}[pool]
        net.output(net.node(operator, [x], "logits", axes=[2, 3], keepdims=0), shape=["n", 10])
        models.append(net.model())
    return models[0], models[1]


def _convolved(
    net: Network, x: str, place: int, block: Block, channels: int, *, is_quantized: bool
) -> str:
    fan_in = channels // block.group * block.kernel**2
    w = draw(block.channels, channels // block.group, block.kernel, block.kernel, seed=place)
    w *= 1.6 * fan_in**-0.5
    if is_quantized:
        scale = np.float32(np.abs(w).max() / 127)
        weight = net.stored(f"w{place}", np.rint(w / scale).astype(np.int8), scale)
        x = net.pair(x, np.float32(0.05), np.int8(-64 if place else 0))
    else:
        weight = net.constant(f"w{place}", w)
    bounds = {"strides": [block.stride] * 2, "pads": [block.kernel // 2] * 4, "group": block.group}
    return net.node("Conv", [x, weight], f"conv{place}", **bounds)


def clip(net: Network, x: str, name: str) -> str:
    """Between 0 and 6."""
    bounds = [net.constant(f"{name} {n}", np.float32(n)) for n in (0, 6)]
    return net.node("Clip", [x, *bounds], name)


def plain(operator: str, **attributes: object) -> Callable[[Network, str, str], str]:
    """Return what writes one operator."""
    return lambda net, x, name: net.node(operator, [x], name, **attributes)


def leaning(net: Network, x: str, name: str) -> str:
    """PRelu with a slope for each of 16 channels."""
    slopes = np.linspace(-0.5, 0.9, 16, dtype=np.float32).reshape(-1, 1, 1)
    return net.node("PRelu", [x, net.constant(f"{name} slopes", slopes)], name)


def larger_half(net: Network, x: str, name: str) -> str:
    """The larger of each two channels (maxout)."""
    parts = [f"{name} one", f"{name} other"]
    net.nodes.append(onnx.helper.make_node("Split", [x], parts, axis=1))
    return net.node("Max", parts, name)


def mobile() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the blocks of mobile networks."""
    return pair(
        (
            Block(3, 16, stride=2, follow=clip),
            Block(3, 16, group=16, follow=clip),
            Block(1, 32, follow=clip),
            Block(3, 32, group=32, stride=2, follow=clip),
            Block(1, 24, follow=clip),
            Block(1, 48, follow=clip),
            Block(3, 48, group=48, follow=clip),
            Block(1, 10),
        )
    )


def followed(
    follow: Callable[[Network, str, str], str], pool: str = "mean"
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return four convolutions of 16 channels, each but the last followed by the same."""
    return pair((*(Block(3, 16, follow=follow) for _ in range(3)), Block(1, 10)), pool)
