"""Large tensors walked in pieces: the same facts, causes and parts as of the whole."""

from dataclasses import replace

import numpy as np
import pytest
from tests.graphs.networks import draw

from foldmark.graphs.sites import Encoding, Site, SiteKind
from foldmark.ledger import pieces, tally
from foldmark.ledger.facts import SiteFactsCollector
from foldmark.ledger.tally import SiteTally

SHAPE = (24, 36)
ENCODINGS = {
    "tensor": Encoding("int8", None, None, np.float32(0.02), np.int8(3)),
    "rows": Encoding("int8", 0, None, np.linspace(0.01, 0.03, 24, dtype=np.float32)),
    "columns": Encoding("int8", 1, None, np.linspace(0.01, 0.03, 36, dtype=np.float32)),
    "blocks": Encoding("int4", 0, 8, np.full((3, 36), 0.3, np.float32)),
    "float16": Encoding("float16"),
}


def taken(encoding: Encoding, kind: SiteKind) -> tuple[SiteTally, SiteFactsCollector]:
    codes = np.zeros(SHAPE, np.int8) if kind is SiteKind.WEIGHT else None
    site = Site("w", kind, "MatMul", "", "w", "w", "w_dq", encoding, codes)
    collector = SiteFactsCollector(site)
    one = SiteTally(site, collector)
    w = draw(*SHAPE) / 3
    w[7, 5] = -9.0
    w[20, 30] = 9.0
    for batch in range(2):
        one.add(batch, 8 * batch, w, draw(*SHAPE, seed=1) / 50, draw(*SHAPE, seed=2 + batch))
    one.settle()
    return one, collector


@pytest.mark.parametrize("kind", [SiteKind.WEIGHT, SiteKind.ACTIVATION])
@pytest.mark.parametrize("form", ENCODINGS)
def test_pieces_make_the_whole(form: str, kind: SiteKind, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, facts = taken(ENCODINGS[form], kind)
    for module in (pieces, tally):
        monkeypatch.setattr(module, "LARGE", 100)
    assert len(list(pieces.pieces(SHAPE, 1))) > 5
    cut, cut_facts = taken(ENCODINGS[form], kind)
    assert cut.amounts == pytest.approx(whole.amounts, rel=1e-5)
    assert sum(cut.causes.values()) == pytest.approx(sum(whole.causes.values()), rel=1e-5)
    assert cut.parts.keys() == whole.parts.keys()
    for name, part in whole.parts.items():
        np.testing.assert_allclose(cut.parts[name], part, rtol=1e-5, atol=1e-5)
    one, other = facts.facts(), cut_facts.facts()
    assert other == replace(
        one,
        relative_error=pytest.approx(one.relative_error),
        relative_error_smallest=pytest.approx(one.relative_error_smallest),
    )
    for ends in ("channel_lows", "channel_highs"):
        np.testing.assert_array_equal(getattr(one, ends), getattr(other, ends))


def test_pieces_begin_at_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LARGE", 40)
    assert [p.start for p in pieces.pieces((20, 8), 0, 8)] == [0, 8, 16]
    assert list(pieces.pieces((4, 8))) == [slice(None)]
    assert list(pieces.pieces(())) == [slice(None)]
