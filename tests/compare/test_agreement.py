"""Rules that one weight leaves open, told apart by the other weights of the file."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from foldmark.compare.agreement import Agreement
from foldmark.compare.diff import diff_artefacts
from foldmark.exact.rule import Rule
from foldmark.formats.opening import open_artefact
from foldmark.kernels.fold import quantize_array
from foldmark.report.difference_text import render
from foldmark.rules import CATALOGUE

RNG = np.random.default_rng(7)
WITHOUT_TIES = {
    name: RNG.normal(0, 0.1, (16, 64)).astype(np.float32) for name in ("a.weight", "b.weight")
}
# A scale of 1/256 in every row, and halves of it between: AI Edge rounds these to even.
TIES = np.append(np.full((16, 1), 127.0), RNG.integers(-126, 126, (16, 63)) + 0.5, axis=1) / 256
EVEN, AWAY = "AI_EDGE_INT8_SYMMETRIC", "TFLITE_CONVERTER_WEIGHT_INT8"


def agreements(
    tmp_path: Path, weights: dict[str, np.ndarray], rules: dict[str, str]
) -> tuple[list[Agreement], str]:
    """Quantize each weight by a rule; return what they agree in, and the report."""
    arrays: dict[str, np.ndarray] = {}
    for name, w in weights.items():
        rule = CATALOGUE[rules.get(name, EVEN)]
        assert isinstance(rule, Rule)
        group = quantize_array(w, (1, w.shape[1]), rule)
        arrays |= {name: group.codes, f"{name}_scale": group.scale}
    save_file(arrays, tmp_path / "q.safetensors")
    save_file(weights, tmp_path / "f.safetensors")
    files = [open_artefact(tmp_path / name) for name in ("q.safetensors",) * 2 + ("f.safetensors",)]
    found = diff_artefacts(*files)
    return list(found.agreed[0].values()), render(found, None, everything=False)


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return WITHOUT_TIES | {"c.weight": TIES.astype(np.float32)}


def test_two_weights_without_ties_leave_the_rounding_open(tmp_path: Path) -> None:
    (agreement,), _ = agreements(tmp_path, WITHOUT_TIES, {})
    assert {EVEN, AWAY} <= set(agreement.names)
    assert (agreement.agree, agreement.total) == (2, 2)


def test_a_third_with_ties_decides(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    """It is not searched itself: two are."""
    (agreement,), text = agreements(tmp_path, weights, {})
    assert EVEN in agreement.names
    assert AWAY not in agreement.names
    assert (agreement.agree, agreement.total) == (3, 3)
    assert "on all 3 weights of this form" in " ".join(text.split())


def test_it_decides_the_other_way(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    (agreement,), _ = agreements(tmp_path, weights, dict.fromkeys(weights, AWAY))
    assert AWAY in agreement.names
    assert EVEN not in agreement.names


def test_a_weight_of_another_rule_is_counted_out(
    tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    """A range of 127.5 steps is none of the rules that are left of the other two."""
    weights = weights | {"d.weight": WITHOUT_TIES["a.weight"] * np.float32(1.1)}
    rules = {"d.weight": "TORCH_OBSERVER_INT8"}
    (agreement,), text = agreements(tmp_path, weights, rules)
    assert EVEN in agreement.names
    assert (agreement.agree, agreement.total) == (3, 4)
    assert "on 3 of 4 weights of this form" in " ".join(text.split())


def test_the_larger_camp_speaks(tmp_path: Path) -> None:
    """The first weight searched is the odd one."""
    made = {f"{k}.weight": RNG.normal(0, 0.1, (16, 64)).astype(np.float32) for k in range(4)}
    (agreement,), _ = agreements(tmp_path, made, {"0.weight": "TORCH_OBSERVER_INT8"})
    assert EVEN in agreement.names
    assert (agreement.agree, agreement.total) == (3, 4)


def test_forms_are_asked_apart(tmp_path: Path) -> None:
    """A vector's codes say nothing about how matrices were rounded."""
    made = WITHOUT_TIES | {"bias": RNG.normal(0, 0.1, 64).astype(np.float32)}
    arrays: dict[str, np.ndarray] = {}
    for name, w in made.items():
        rule = CATALOGUE[EVEN]
        assert isinstance(rule, Rule)
        group = quantize_array(w, w.shape if w.ndim == 1 else (1, 64), rule)
        arrays |= {name: group.codes, f"{name}_scale": group.scale}
    save_file(arrays, tmp_path / "q.safetensors")
    save_file(made, tmp_path / "f.safetensors")
    files = [open_artefact(tmp_path / name) for name in ("q.safetensors",) * 2 + ("f.safetensors",)]
    found = diff_artefacts(*files)
    assert sorted(a.total for a in found.agreed[0].values()) == [1, 2]
