"""The page computes what `exact` does, needs no network, and works by keyboard and on a phone."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.lab.chromium import Page, chromium, find

from foldmark.cli.main import run
from foldmark.exact.attention import softmax
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.rounding import Rounding
from foldmark.exact.rulers import largest_error, relative_error
from foldmark.lab import rules
from foldmark.lab.web import page
from foldmark.lab.words import Language, Words

STATES = 1000
ROUNDINGS = {
    "half_even": Rounding.HALF_EVEN,
    "half_away": Rounding.HALF_AWAY,
    "half_up": Rounding.HALF_UP,
    "toward_zero": Rounding.TOWARD_ZERO,
}
GROUP_SIZES = {"one": 8, "rows": 4, "pairs": 2}

needs_chromium = pytest.mark.skipif(
    find() is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(page(Language.EN), encoding="utf-8")
    program = find()
    assert program is not None
    with chromium(program, folder / "profile") as opened:
        opened.open((folder / "page.html").as_uri())
        yield opened


def draw_state(random: Random) -> dict[str, Any]:
    """Draw a state of the page: ties, zeros, tiny and huge values among ordinary ones."""
    scale = 2.0 ** random.randint(-8, 4)
    kinds = (
        lambda: round(random.uniform(-1.5, 1.5), 3),
        lambda: (random.randint(-127, 127) + 0.5) * scale,
        lambda: random.choice((0.0, -0.0, 1.0, -1.0)),
        lambda: random.gauss(0, 1) * 10.0 ** random.randint(-6, 6),
        lambda: random.randint(-4000, 4000) * 5e-324,
    )
    kind = random.choice(kinds)
    values = [kind() if random.random() < 0.7 else random.choice(kinds)() for _ in range(8)]
    if random.random() < 0.3:
        values[random.randrange(8)] = 127 * scale
    outlier = random.choice((None, 127 * scale, random.gauss(0, 100), 0.0))
    return {
        "values": values,
        "outlier": outlier,
        "rounding": random.choice(list(ROUNDINGS)),
        "granularity": random.choice(list(GROUP_SIZES)),
    }


def expected(state: dict[str, Any]) -> dict[str, Any]:
    """Return what the page has to show for a state, by `exact`."""
    rule = rules.with_rounding(rules.SYMMETRIC, ROUNDINGS[state["rounding"]])
    size, values = GROUP_SIZES[state["granularity"]], state["values"]
    scales, codes, restored, used = [], [], [], 0
    for start in range(0, 8, size):
        group = values[start : start + size]
        last = start + size == 8 and state["outlier"] is not None
        scale, _ = rules.choose([*group, state["outlier"]] if last else group, rule)
        own = rules.codes_of(group, scale, 0, rule)
        scales.append(scale)
        codes += own
        restored += rules.unfold(own, scale)
        used += len(set(own))
    right, moved = softmax(values, FLOAT64), softmax(restored, FLOAT64)
    return {
        "scales": scales,
        "codes": codes,
        "restored": restored,
        "used": used,
        "largestError": largest_error(values, restored),
        "right": right,
        "moved": moved,
        "errorIn": relative_error(values, restored),
        "errorOut": relative_error(right, moved),
    }


@needs_chromium
def test_the_page_computes_what_exact_does_on_a_thousand_states(browser: Page) -> None:
    random = Random(1)
    states = [draw_state(random) for _ in range(STATES)]
    # JSON writes no -0.0 that JavaScript would drop: it reads the sign back.
    results = json.loads(browser.evaluate(f"JSON.stringify({json.dumps(states)}.map(compute))"))
    assert len(results) == STATES
    for state, shown in zip(states, results, strict=True):
        right = expected(state)
        for key in ("codes", "scales", "restored", "used"):
            assert shown[key] == right[key], (key, state)
        for key in ("right", "moved"):
            assert shown[key] == pytest.approx(right[key], rel=1e-12, abs=1e-300), (key, state)
        assert math.isclose(shown["largestError"], right["largestError"], rel_tol=1e-12), state
        assert math.isclose(shown["errorIn"], right["errorIn"], rel_tol=1e-9), state
        assert math.isclose(shown["errorOut"], right["errorOut"], rel_tol=1e-6, abs_tol=1e-12)


@needs_chromium
def test_the_comparison_can_fail(browser: Page) -> None:
    """A page that rounded halves up would be found out."""
    random = Random(1)
    states = [draw_state(random) for _ in range(STATES)]
    wrong = [{**s, "rounding": "half_up"} for s in states if s["rounding"] == "half_even"]
    results = json.loads(browser.evaluate(f"JSON.stringify({json.dumps(wrong)}.map(compute))"))
    differing = [
        shown
        for state, shown in zip(wrong, results, strict=True)
        if shown["codes"] != expected({**state, "rounding": "half_even"})["codes"]
    ]
    assert len(differing) > 20


@needs_chromium
def test_the_page_is_used_by_keyboard_alone(browser: Page) -> None:
    browser.evaluate("load('step2'); document.body.focus(); null")
    places = []
    for _ in range(40):
        browser.press("Tab", 9)
        places.append(
            browser.evaluate(
                "(() => { const e = document.activeElement; return e.id || e.dataset.preset"
                " || e.getAttribute('aria-label') || e.tagName; })()"
            )
        )
    reached = set(places)
    assert {"step2", "close", "far", "rounding", "granularity", "outlier-on"} <= reached
    assert {f"Value {n}" for n in range(1, 9)} <= reached

    focus = "document.querySelector('#values .row:nth-child({n}) input[type=range]').focus(); null"
    shown = "document.querySelector('#values .row:nth-child({n}) .code').textContent"
    browser.evaluate(focus.format(n=1))
    assert browser.evaluate(shown.format(n=1)) == "31"
    for _ in range(10):
        browser.press("ArrowRight", 39)
    assert browser.evaluate("state.values[0]") == pytest.approx(0.32)
    assert browser.evaluate(shown.format(n=1)) == "32"

    # The outlier: the space bar plants it, and the codes of the others collapse.
    browser.evaluate("document.getElementById('outlier-on').focus(); null")
    before = browser.evaluate("document.getElementById('summary').textContent")
    browser.press(" ", 32, " ")
    assert browser.evaluate("state.outlier") == 12.7
    assert browser.evaluate(shown.format(n=2)) == "-13"
    assert browser.evaluate("document.getElementById('summary').textContent") != before

    # The rounding rule and the granularity: arrows in their lists.
    for control, key, value in (
        ("rounding", "rounding", "half_away"),
        ("granularity",) * 2 + ("rows",),
    ):
        browser.evaluate(f"document.getElementById('{control}').focus(); null")
        browser.press("ArrowDown", 40)
        assert browser.evaluate(f"state.{key}") == value
    assert browser.evaluate("document.querySelectorAll('#strips .strip').length") == 2
    assert browser.evaluate(shown.format(n=2)) == "-127"


@needs_chromium
def test_a_value_is_dragged(browser: Page) -> None:
    browser.evaluate(
        "state.granularity = 'one'; state.rounding = 'half_even'; state.outlier = null;"
        "load('step2');"
        "document.querySelector('#values .row input[type=range]').scrollIntoView(); null"
    )
    left, top, width, height = browser.evaluate(
        "(() => { const r = document.querySelector('#values .row input[type=range]')"
        ".getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )
    y, middle = top + height / 2, left + width / 2
    browser.mouse("mousePressed", middle, y)
    assert browser.evaluate("state.values[0]") == pytest.approx(0.0, abs=0.02)
    browser.mouse("mouseMoved", left + width - 1, y)
    browser.mouse("mouseReleased", left + width - 1, y)
    assert browser.evaluate("state.values[0]") == pytest.approx(1.5, abs=0.02)
    # Its field, its code and the scale that it now sets have followed.
    assert browser.evaluate("document.querySelector('#values .row .field input').value") == "1.5"
    assert browser.evaluate("document.querySelector('#values .row .code').textContent") == "127"
    assert "scale 0.0118" in browser.evaluate("document.getElementById('strips').textContent")


@needs_chromium
def test_the_softmax_moves_with_the_values(browser: Page) -> None:
    browser.evaluate(
        "state.granularity = 'one'; state.rounding = 'half_even'; state.outlier = null;"
        "load('close'); null"
    )
    told = browser.evaluate("document.getElementById('softmax-summary').textContent")
    assert "grows" in told
    browser.evaluate("load('far'); null")
    told = browser.evaluate("document.getElementById('softmax-summary').textContent")
    assert "buried" in told


@needs_chromium
@pytest.mark.parametrize("width", [320, 360, 390, 768, 1280])
def test_nothing_sticks_out_at_any_width(browser: Page, width: int) -> None:
    browser.send(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=2,
        mobile=width < 500,
    )
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    small = browser.evaluate(
        "[...document.querySelectorAll('input[type=range], button, select')]"
        ".filter(e => e.getBoundingClientRect().height < 24).length"
    )
    assert small == 0


@needs_chromium
def test_the_page_asks_for_nothing_but_itself(browser: Page) -> None:
    addresses = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    assert len(addresses) == 1
    assert addresses[0].startswith("file:")
    faults = [e for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
    assert faults == []


@pytest.mark.parametrize("language", list(Language), ids=lambda language: language.value)
def test_the_page_is_one_file_in_the_readers_language(language: Language) -> None:
    text = page(language)
    assert f'<html lang="{language.value}">' in text
    assert Words(language).say("page", "title") in text
    assert re.findall(r"(?:src|href)=|url\(|@import|fetch\(|XMLHttp|https?://", text) == []
    assert "default-src 'none'" in text
    strings = re.search(r'id="strings">(.*?)</script>', text)
    assert strings
    assert set(json.loads(strings[1])) >= {"value", "scale", "summary", "grows", "buried"}


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert run(["lab", "page", str(out), "--lang", "ja"]) == 0
    assert str(out) in capsys.readouterr().out
    assert out.read_text(encoding="utf-8") == page(Language.JA)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert run(["lab", "page", str(tmp_path / "no" / "page.html")]) == 2
    assert run(["lab", "page", str(tmp_path)]) == 2
