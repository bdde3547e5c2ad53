"""Weights that lie in one piece in one file and in parts, or in another order, in the other."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.compare.aligning import arranged

from foldmark.compare import sampling
from foldmark.compare.align import align
from foldmark.formats.opening import open_artefact

RNG = np.random.default_rng(20281)


def in_rotary_order(weight: np.ndarray, width: int) -> np.ndarray:
    """Interleave the halves of each head, as llama.cpp's converter does to query and key."""
    rows, columns = weight.shape
    return weight.reshape(-1, 2, width // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def by_heads(parts: list[np.ndarray], width: int) -> np.ndarray:
    """Fuse query, key and value as GPT-NeoX and Falcon do: for each key head its own."""
    columns = parts[0].shape[1]
    heads = parts[1].shape[0] // width
    apart = [part.reshape(heads, -1, width, columns) for part in parts]
    return np.concatenate(apart, axis=1).reshape(-1, columns)


@pytest.fixture(params=[False, True], ids=["whole", "by samples"])
def by_samples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both as small files are aligned and as large ones are, of which only samples are read."""
    if request.param:
        monkeypatch.setattr(sampling, "_WHOLE", 1 << 8)
        monkeypatch.setattr(sampling, "_LARGE", 1 << 8)
        monkeypatch.setattr(sampling, "_ELEMENTS", 1 << 9)
    return bool(request.param)


@pytest.mark.usefixtures("by_samples")
@pytest.mark.parametrize("whole_is_left", [False, True])
@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (8, 1)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("layout", ["stacked", "by heads"])
def test_fused_against_parts_in_rotary_order(
    tmp_path: Path, whole_is_left: bool, heads: tuple[int, int], turned: bool, layout: str
) -> None:
    """One tool's query, key and value in one piece against GGUF's three, reordered or not."""
    width = 16
    parts = [
        RNG.normal(size=(n * width, 32)).astype(np.float32) for n in (heads[0], *heads[1:] * 2)
    ]
    fused = np.concatenate(parts) if layout == "stacked" else by_heads(parts, width)
    if turned:
        parts[:2] = [in_rotary_order(part, width) for part in parts[:2]]
    apart = {f"blk.0.attn_{n}.weight": part for n, part in zip("qkv", parts, strict=True)}
    whole = {"model.layers.0.self_attn.qkv_proj.weight": fused}
    evidence = arranged(tmp_path, *((whole, apart) if whole_is_left else (apart, whole)))
    assert len(evidence) == (1 if whole_is_left else 3)
    reordered = sum("rotary rows reordered in heads of 16" in words for words in evidence)
    assert reordered == turned * (1 if whole_is_left else 2)
    is_apart = layout == "by heads" and heads[1] > 1
    assert all(("by heads of 16" in words) == is_apart for words in evidence)
    assert all(words.endswith("(cosine 1.0000)") for words in evidence)


@pytest.mark.usefixtures("by_samples")
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("fused_is_left", [False, True])
def test_a_whole_by_heads_against_one_by_parts(
    tmp_path: Path, queries: int, fused_is_left: bool
) -> None:
    """GPT-NeoX and Falcon lie by heads in Hugging Face's files, by parts in GGUF."""
    parts = [RNG.normal(size=(n * 16, 32)).astype(np.float32) for n in (4 * queries, 4, 4)]
    one = {"gpt_neox.layers.3.attention.query_key_value.weight": by_heads(parts, 16)}
    other = {"blk.3.attn_qkv.weight": np.concatenate(parts)}
    (evidence,) = arranged(tmp_path, *((one, other) if fused_is_left else (other, one)))
    assert "rows reordered, by heads of 16" in evidence
    assert ("3 queries a key" in evidence) == (queries == 3)


def test_a_fused_weight_of_other_rows_is_left_over(tmp_path: Path) -> None:
    parts = [RNG.normal(size=(32, 32)).astype(np.float32) for _ in range(3)]
    apart = {f"blk.0.attn_{n}.weight": part for n, part in zip("qkv", parts, strict=True)}
    whole = {"layers.0.self_attn.qkv_proj.weight": RNG.normal(size=(96, 32)).astype(np.float32)}
    save_file(whole, tmp_path / "l.safetensors")
    save_file(apart, tmp_path / "r.safetensors")
    found = align(*(open_artefact(tmp_path / f"{side}.safetensors").tensors for side in "lr"))
    assert (len(found.matches), len(found.left_over), len(found.right_over)) == (0, 1, 3)


@pytest.mark.usefixtures("by_samples")
@pytest.mark.parametrize("whole_is_left", [False, True])
@pytest.mark.parametrize("layout", ["stacked", "in turn"])
@pytest.mark.parametrize("turned", [False, True])
def test_gate_and_up_of_all_experts(
    tmp_path: Path, whole_is_left: bool, layout: str, turned: bool
) -> None:
    """Hugging Face stacks gate and up of all experts in one tensor, llama.cpp in two."""
    parts = [RNG.normal(size=(5, 12, 32)).astype(np.float32) for _ in range(2)]
    fused = np.concatenate(parts, axis=1)
    if layout == "in turn":
        fused = np.stack(parts, axis=2).reshape(5, 24, 32)
    if turned:
        fused = fused.swapaxes(1, 2)
    apart = {f"blk.1.ffn_{n}_exps.weight": p for n, p in zip(("gate", "up"), parts, strict=True)}
    whole = {"model.layers.1.mlp.experts.gate_up_proj": fused}
    evidence = arranged(tmp_path, *((whole, apart) if whole_is_left else (apart, whole)))
    if whole_is_left:
        way = ", in turn" * (layout == "in turn") + ", transposed" * turned
        names = ", ".join(map(repr, apart))
        assert evidence == [f"made of {names}{way} (cosine 1.0000)"]
    else:
        name = "columns" if turned else "rows"
        first = (
            f"{name} 0 to 11 of each of " if layout == "stacked" else f"{name} 0 to 22 by 2 of each"
        )
        assert evidence[0].startswith(first)


@pytest.mark.usefixtures("by_samples")
@pytest.mark.parametrize("padded_is_left", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_padding_of_a_weight_that_lies_transposed(
    tmp_path: Path, padded_is_left: bool, axis: int
) -> None:
    """An exporter's head lies (inputs, vocabulary), its vocabulary filled up."""
    plain = RNG.normal(size=(40, 32)).astype(np.float32)
    padded = np.pad(plain, [(0, 8), (0, 0)] if axis == 0 else [(0, 0), (0, 8)])
    left, right = (padded.T, plain) if padded_is_left else (plain, padded.T)
    (evidence,) = arranged(tmp_path, {"lm_head.weight": left}, {"output.weight": right})
    assert "transposed" in evidence
    assert ("8 more" in evidence) == padded_is_left
