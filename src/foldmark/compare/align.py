"""Which tensor of one file is which tensor of another, each match with its evidence.

First by name, as it stands or through the naming schemes of the field; then by shape and a
sample of the content. A weight may lie transposed, reshaped, padded with rows, with its rotary
rows in another order, or in one piece with its neighbours (query, key and value; gate and up).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from foldmark.formats.stored import Array, StoredTensor

__all__ = ["Alignment", "Match", "align", "canonical_name"]

# Content is compared on so many places drawn once for each shape.
_PLACES = 4096
# Larger tensors are not loaded only to be recognised.
_LARGEST = 1 << 27
_ALIKE = 0.9
# Vectors and tables that are smaller say too little about whose they are.
_SMALLEST = 256

# Pieces of names that tools add and that say nothing about which weight it is.
_ADDED = re.compile(
    r"^(inner|model|module|transformer|bert|base_model|_orig_mod)\.|"
    r"([._](quantized|weight|weights|int8|qweight|data))+$"
)
_GGUF = (
    (re.compile(r"^token_embd$"), "embed_tokens"),
    (re.compile(r"^output_norm$"), "norm"),
    (re.compile(r"^output$"), "lm_head"),
    (re.compile(r"^blk\.(\d+)\.attn_q$"), r"layers.\1.self_attn.q_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_k$"), r"layers.\1.self_attn.k_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_v$"), r"layers.\1.self_attn.v_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_qkv$"), r"layers.\1.self_attn.qkv_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_output$"), r"layers.\1.self_attn.o_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_gate$"), r"layers.\1.mlp.gate_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_up$"), r"layers.\1.mlp.up_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_down$"), r"layers.\1.mlp.down_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_norm$"), r"layers.\1.input_layernorm"),
    (re.compile(r"^blk\.(\d+)\.ffn_norm$"), r"layers.\1.post_attention_layernorm"),
)
# a fused weight's last part -> the parts that it is made of, from the first row down
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}

Arrange = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Match:
    """One tensor in both files.

    Attributes:
        left: the tensor whose layout is kept.
        right: tensors that make it up, one in most cases.
        arrange: brings the right one's numbers, float32, into the left one's layout.
        evidence: how the match was found, in words.
    """

    left: StoredTensor
    right: tuple[StoredTensor, ...]
    arrange: Arrange
    evidence: str

    def load_right(self) -> Array:
        """Return the right tensor's numbers in the left one's layout, float32."""
        return self.arrange(np.concatenate([t.load().dequantize() for t in self.right]))


@dataclass(frozen=True, eq=False)
class Alignment:
    """All matches, and what is left on either side."""

    matches: tuple[Match, ...]
    left_over: tuple[StoredTensor, ...]
    right_over: tuple[StoredTensor, ...]


def canonical_name(name: str) -> str:
    """Strip what tools add to a name and translate it into Hugging Face's scheme."""
    plain = name.replace("/", ".").replace("::", ".").strip(".")
    while (shorter := _ADDED.sub("", plain)) != plain and shorter:
        plain = shorter
    for pattern, scheme in _GGUF:
        if pattern.match(plain):
            return pattern.sub(scheme, plain)
    return plain


def align(
    left: tuple[StoredTensor, ...], right: tuple[StoredTensor, ...], heads: int = 0
) -> Alignment:
    """Match every tensor of the left file with one of the right.

    Args:
        left: tensors to find partners for.
        right: where to look.
        heads: attention heads, to undo a reordering of rotary rows; 0 when unknown.
    """
    finder = _Finder(left, right, heads)
    return finder.run()


class _Finder:
    """The two sides and what is left of them."""

    def __init__(
        self, left: tuple[StoredTensor, ...], right: tuple[StoredTensor, ...], heads: int
    ) -> None:
        self.left = {tensor.name: tensor for tensor in left}
        self.right = {tensor.name: tensor for tensor in right}
        self.by_name: dict[str, StoredTensor] = {}
        for tensor in right:
            self.by_name.setdefault(canonical_name(tensor.name), tensor)
        self.heads = heads
        self.matches: list[Match] = []
        self.samples: dict[int, Array] = {}

    def run(self) -> Alignment:
        for tensor in list(self.left.values()):
            found = self.right.get(tensor.name)
            evidence = "same name"
            if found is None:
                found = self.by_name.get(canonical_name(tensor.name))
                evidence = f"named {found.name!r}" if found is not None else ""
            if found is not None and found.name in self.right:
                self._match(tensor, found, evidence)
        for tensor in list(self.left.values()):
            self._match_fused(tensor)
        for tensor in list(self.left.values()):
            self._match_content(tensor)
        order = {match.left.name: place for place, match in enumerate(self.matches)}
        matches = sorted(self.matches, key=lambda match: order[match.left.name])
        return Alignment(tuple(matches), tuple(self.left.values()), tuple(self.right.values()))

    def _match(self, tensor: StoredTensor, found: StoredTensor, evidence: str) -> None:
        for words, arrange in _arrangements(tensor.shape, found.shape):
            plain = words == "" or len(tensor.shape) < 2
            square = tensor.shape == found.shape[::-1] and tensor.shape == found.shape
            if plain and not (square and self._prefers_transposed(tensor, found)):
                self._keep(tensor, found, arrange, evidence)
                return
            if not plain and self._alike(tensor, found, arrange):
                self._keep(tensor, found, arrange, f"{evidence}, {words}")
                return

    def _prefers_transposed(self, tensor: StoredTensor, found: StoredTensor) -> bool:
        same = self._likeness(tensor, found, lambda a: a)
        return same < _ALIKE and self._likeness(tensor, found, np.transpose) > max(same, _ALIKE)

    def _keep(
        self, tensor: StoredTensor, found: StoredTensor, arrange: Arrange, evidence: str
    ) -> None:
        if self.heads and re.search(r"\.(q|k)_proj$", canonical_name(tensor.name)):
            rotated = _rotary(self.heads)
            if tensor.shape[0] % (2 * self.heads) == 0 and (
                self._likeness(tensor, found, arrange) < _ALIKE
                and self._likeness(tensor, found, rotated) > _ALIKE
            ):
                arrange, evidence = rotated, f"{evidence}, rotary rows reordered"
        self.matches.append(Match(tensor, (found,), arrange, evidence))
        del self.left[tensor.name]
        del self.right[found.name]

    def _match_fused(self, tensor: StoredTensor) -> None:
        name = canonical_name(tensor.name)
        for whole, parts in _FUSED.items():
            if not name.endswith(whole):
                continue
            names = [name.removesuffix(whole) + part for part in parts]
            found = [self.by_name[n] for n in names if n in self.by_name]
            rows = sum(part.shape[0] for part in found)
            if len(found) == len(parts) and (rows, *found[0].shape[1:]) == tensor.shape:
                evidence = "made of " + ", ".join(repr(part.name) for part in found)
                self.matches.append(Match(tensor, tuple(found), lambda a: a, evidence))
                del self.left[tensor.name]
                for part in found:
                    self.right.pop(part.name, None)
                return

    def _match_content(self, tensor: StoredTensor) -> None:
        """Find the most alike tensor of a shape that fits."""
        if not _SMALLEST <= tensor.elements <= _LARGEST:
            return
        best: tuple[float, StoredTensor, Arrange, str] | None = None
        for other in self.right.values():
            if other.elements != tensor.elements or other.layout.number_format in ("int64", "bool"):
                continue
            for words, arrange in _arrangements(tensor.shape, other.shape):
                likeness = self._likeness(tensor, other, arrange)
                if likeness > _ALIKE and (best is None or likeness > best[0]):
                    best = (likeness, other, arrange, words)
        if best is not None:
            likeness, other, arrange, words = best
            evidence = f"content of {other.name!r} (cosine {likeness:.4f})"
            self._keep(tensor, other, arrange, f"{evidence}, {words}" if words else evidence)

    def _alike(self, tensor: StoredTensor, other: StoredTensor, arrange: Arrange) -> bool:
        return self._likeness(tensor, other, arrange) > _ALIKE

    def _likeness(self, tensor: StoredTensor, other: StoredTensor, arrange: Arrange) -> float:
        """Return the cosine between two tensors on the places drawn for the left one's shape."""
        places = _places(tensor.elements)
        one = self._sample(tensor, places, None, tensor.shape)
        two = self._sample(other, places, arrange, tensor.shape)
        if one is None or two is None:
            return 0.0
        with np.errstate(all="ignore"):
            scale = float(np.linalg.norm(one) * np.linalg.norm(two))
            return float(one @ two) / scale if scale > 0 and np.isfinite(scale) else 0.0

    def _sample(
        self, tensor: StoredTensor, places: Array, arrange: Arrange | None, shape: tuple[int, ...]
    ) -> Array | None:
        if not 0 < tensor.elements <= _LARGEST:
            return None
        order = np.arange(tensor.elements).reshape(tensor.shape)
        taken = places if arrange is None else self._origin(arrange, order, shape, places)
        if taken is None:
            return None
        key = id(tensor)
        if key not in self.samples:
            if len(self.samples) > 64:
                self.samples.clear()
            with np.errstate(all="ignore"):
                self.samples[key] = tensor.load().dequantize().reshape(-1)
        return self.samples[key][taken].astype(np.float64)

    @staticmethod
    def _origin(
        arrange: Arrange, order: Array, shape: tuple[int, ...], places: Array
    ) -> Array | None:
        """Return where in the right tensor the left one's places come from."""
        arranged = arrange(order)
        return arranged.reshape(-1)[places] if arranged.shape == shape else None


def _places(elements: int) -> Array:
    if elements <= _PLACES:
        return np.arange(elements)
    return np.random.default_rng(elements).integers(0, elements, _PLACES)


def _arrangements(wanted: tuple[int, ...], given: tuple[int, ...]) -> Iterator[tuple[str, Arrange]]:
    """Yield ways to bring one shape into another, the plainest first."""
    if wanted == given:
        yield "", lambda a: a
        if len(wanted) == 2 and wanted[0] == wanted[1]:
            yield "transposed", np.transpose
        return
    if len(wanted) == len(given) == 2 and wanted == given[::-1]:
        yield "transposed", np.transpose
    elif len(wanted) == 4 and len(given) == 4:
        for axes in ((0, 2, 3, 1), (3, 0, 1, 2), (1, 2, 3, 0), (0, 3, 1, 2)):
            if tuple(given[axis] for axis in axes) == wanted:
                yield "axes moved", _moved(axes)
    elif np.prod(wanted) == np.prod(given):
        yield "reshaped", lambda a: a.reshape(wanted)
    elif len(wanted) == len(given) and wanted[1:] == given[1:] and wanted[0] < given[0]:
        yield f"the first {wanted[0]} of {given[0]} rows", lambda a: a[: wanted[0]]


def _moved(axes: tuple[int, ...]) -> Arrange:
    return lambda a: np.transpose(a, axes)


def _rotary(heads: int) -> Arrange:
    """Return the reordering that llama.cpp's converter gives to query and key rows."""

    def arrange(a: Array) -> Array:
        halves = a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:])
        return np.asarray(halves.swapaxes(1, 2).reshape(a.shape))

    return arrange
