"""Weight-only quantization: blocks of 4- or 8-bit codes that the kernel reads directly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from foldmark.errors import InvalidScheme
from foldmark.exact.rule import Rule
from foldmark.exact.tools import onnxruntime as rules
from foldmark.kernels.fold import quantize_array
from foldmark.surgery.account import Account, Done, Left
from foldmark.surgery.ahead import at_once
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, Scope, attribute, node_name
from foldmark.surgery.products import PRODUCTS, Product, find_product
from foldmark.surgery.tables import quantize_table
from foldmark.surgery.weights import finite, product_dtype

__all__ = ["BlockCoded", "BlockCoder", "BlockScheme", "block_round_to_nearest", "quantize_weights"]

_SIZES = (16, 32, 64, 128, 256)
# Activations are quantized per block inside the kernel (4), or stay in float (0).
INTEGER_COMPUTE, FLOAT_COMPUTE = 4, 0


@dataclass(frozen=True)
class BlockScheme:
    """Blocks of codes along the inner axis.

    Attributes:
        bits: 4 or 8.
        block_size: values that share a scale: 16, 32, 64, 128 or 256.
        symmetric: the zero point is the middle code; else it is stored.
        compute: the kernel's accuracy_level: 4 multiplies in int8, 0 in the weights' float.
    """

    bits: int = 4
    block_size: int = 32
    symmetric: bool = True
    compute: int = INTEGER_COMPUTE

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.bits not in (4, 8):
            raise InvalidScheme("weight-only codes have 4 or 8 bits", got=str(self.bits))
        if self.block_size not in _SIZES:
            raise InvalidScheme(
                "the kernel has no such block size",
                got=str(self.block_size),
                expected=", ".join(map(str, _SIZES)),
            )

    @property
    def rule(self) -> Rule:
        """ONNX Runtime's own rule for these blocks."""
        return _RULES[self.bits, self.symmetric]

    @property
    def words(self) -> str:
        """The scheme in words."""
        kind = "symmetric" if self.symmetric else "affine"
        return f"{self.bits}-bit weights in blocks of {self.block_size}, {kind}"


_RULES = {
    (4, True): rules.ONNXRUNTIME_MATMULNBITS_4_SYMMETRIC,
    (4, False): rules.ONNXRUNTIME_MATMULNBITS_4_ASYMMETRIC,
    (8, True): rules.ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC,
    (8, False): rules.ONNXRUNTIME_MATMULNBITS_8_ASYMMETRIC,
}


@dataclass(frozen=True)
class BlockCoded:
    """Codes of a weight W^T in blocks along its rows.

    Attributes:
        codes: (out, in)  uint8.
        scale: (out, blocks).
        zero_point: (out, blocks)  uint8.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.floating]
    zero_point: NDArray[np.uint8]


BlockCoder = Callable[[Product, NDArray[np.floating], BlockScheme], BlockCoded]
"""Makes the codes of W^T (out, in) of a product."""


def block_round_to_nearest(
    _product: Product, turned: NDArray[np.floating], scheme: BlockScheme
) -> BlockCoded:
    """Quantize W^T (out, in) by the rule alone."""
    group = quantize_array(np.ascontiguousarray(turned), (1, scheme.block_size), scheme.rule)
    return BlockCoded(group.codes.astype(np.uint8), group.scale, group.zero_point.astype(np.uint8))


def quantize_weights(
    editor: Editor, account: Account, scheme: BlockScheme, selection: Selection, coder: BlockCoder
) -> None:
    """Rewrite the chosen matrix products, branches included, to MatMulNBits."""
    editor.use_domain("com.microsoft", 1)
    stored: dict[tuple[int, str, bool], list[str]] = {}
    for scope in reversed(list(editor.scopes())):
        made: list[onnx.NodeProto] = []
        for node in scope.graph.node:
            if node.op_type == "Gather" and not selection.reason_against(node):
                made += quantize_table(node, scope, editor, account, at_once)
                continue
            product = find_product(node, scope)
            reason = _reason(product, node, selection)
            if isinstance(product, str) or reason:
                if node.op_type in (*PRODUCTS, *_LAYERS):
                    account.left.append(Left(node_name(node), node.op_type, reason))
                made.append(node)
                continue
            key = (id(product.home), product.weight, product.transposed)
            if key not in stored:
                stored[key] = _store(product, scheme, editor, coder)
            made += _blocks_product(product, scheme, editor, stored[key])
            _report(product, scheme, account)
        editor.replace_nodes(scope, made)


_LAYERS = ("LSTM", "GRU", "Attention", "EmbedLayerNormalization")


def _reason(product: Product | str, node: onnx.NodeProto, selection: Selection) -> str:
    if isinstance(product, str):
        return "no kernel reads blocks of codes here" if node.op_type in _LAYERS else product
    if node.op_type not in ("MatMul", "Gemm"):
        return selection.reason_against(node) or "no kernel reads blocks of codes here"
    if node.op_type == "Gemm" and (
        attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1
    ):
        return "alpha or beta is not 1"
    if product_dtype(product) == np.float64:
        return "the kernel takes float32 and float16"
    return selection.reason_against(node)


def _report(product: Product, scheme: BlockScheme, account: Account) -> None:
    inner = product.shape[1] if product.transposed else product.shape[0]
    size = int(np.prod(product.shape))
    account.done.append(Done(product.name, product.node.op_type, scheme.words, size))
    if rest := inner % scheme.block_size:
        fits = inner & -inner
        account.note(
            f"{product.name}: blocks of {scheme.block_size} do not divide its {inner} inputs; "
            f"the last block has {rest} and is padded (blocks of {fits} would divide)"
        )


def _store(product: Product, scheme: BlockScheme, editor: Editor, coder: BlockCoder) -> list[str]:
    values = finite(product)
    turned = values if product.transposed else values.T
    found = coder(product, turned, scheme)
    home: Scope = product.home
    base = product.weight
    names = [
        home.add(editor.fresh(f"{base}_blocks"), packed_blocks(found, scheme)),
        home.add(editor.fresh(f"{base}_scales"), found.scale.astype(values.dtype).reshape(-1)),
    ]
    if not scheme.symmetric:
        zeros = _packed_rows(found.zero_point, scheme.bits).reshape(-1)
        names.append(home.add(editor.fresh(f"{base}_zero_points"), zeros))
    return names


def packed_blocks(found: BlockCoded, scheme: BlockScheme) -> NDArray[np.uint8]:
    """Return codes as the kernel reads them: (out, blocks, block * bits / 8), low nibble first.

    The tail of the last block, which the kernel does not read, holds zeros.
    """
    rows, inner = found.codes.shape
    blocks = found.scale.shape[1]
    filled = np.zeros((rows, blocks * scheme.block_size), np.uint8)
    filled[:, :inner] = found.codes
    return _packed_rows(filled, scheme.bits).reshape(rows, blocks, -1)


def _packed_rows(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return each row's codes in bytes, low bits first; a row starts a new byte."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    even = codes if codes.shape[1] % 2 == 0 else np.pad(codes, ((0, 0), (0, 1)))
    return np.ascontiguousarray(even[:, ::2] | (even[:, 1::2] << 4))


def _blocks_product(
    product: Product, scheme: BlockScheme, editor: Editor, stored: list[str]
) -> Iterator[onnx.NodeProto]:
    node = product.node
    outer, inner = product.shape if product.transposed else product.shape[::-1]
    bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
    result = editor.fresh(f"{product.name}_product") if bias else node.output[0]
    yield helper.make_node(
        "MatMulNBits",
        [node.input[0], *stored],
        [result],
        editor.fresh(f"{product.name}_NBits"),
        domain="com.microsoft",
        K=inner,
        N=outer,
        bits=scheme.bits,
        block_size=scheme.block_size,
        accuracy_level=scheme.compute,
    )
    if bias:
        yield helper.make_node(
            "Add", [result, bias], [node.output[0]], editor.fresh(f"{product.name}_bias")
        )
