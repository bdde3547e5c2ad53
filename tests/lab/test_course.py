"""The texts: complete in three languages, one in their examples, and right in every number."""

import ast
import doctest
import re
import string
import tomllib
from pathlib import Path

import pytest

from foldmark.lab import files, words
from foldmark.lab.exercise import Function, Step
from foldmark.lab.steps import STEPS
from foldmark.lab.words import Language, Words, chapter, from_locale, introduction

LANGUAGES = list(Language)
EVERY = [(step, language) for step in STEPS for language in LANGUAGES]
NAMES = [f"{step.number}-{language.value}" for step, language in EVERY]
HEADINGS = {
    Language.EN: ["Why", "Worked by hand", "Your task", "In a real model"],
    Language.KO: ["왜", "손으로 풀기", "할 일", "실제 모델에서"],
    Language.JA: ["なぜ", "手で解く", "課題", "実際のモデルでは"],
}
# A number that stands alone: not part of a word, a version or a longer number.
NUMBER = re.compile(r"(?<![A-Za-z0-9_.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![A-Za-z0-9_])", re.ASCII)
# "step 2" and "8-bit" are names, not numbers of the example.
NAMED = re.compile(r"step \d+|\d+단계|ステップ\d+|\d+-bit|\d+ bits|\d+비트|\d+ ?ビット")


def everything_right() -> dict[str, object]:
    """Return the course's functions as they are right: those of `exact`."""
    return {one.name: one.answer for step in STEPS for one in step.functions}


def sections(step: Step, language: Language) -> list[str]:
    return re.split(r"^## .*\n", chapter(step.number, step.name, language), flags=re.MULTILINE)


def examples(step: Step, language: Language) -> list[doctest.Example]:
    blocks = re.findall(
        r"```python\n(.*?)```", chapter(step.number, step.name, language), re.DOTALL
    )
    return doctest.DocTestParser().get_examples("\n".join(blocks))


@pytest.mark.parametrize(("step", "language"), EVERY, ids=NAMES)
def test_a_chapter_has_its_title_and_four_parts(step: Step, language: Language) -> None:
    text = chapter(step.number, step.name, language)
    assert text.startswith(f"# {step.number}. ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS[language]
    assert all(len(part.strip()) > 60 for part in sections(step, language)[1:])


@pytest.mark.parametrize(("step", "language"), EVERY, ids=NAMES)
def test_every_example_is_what_exact_gives(step: Step, language: Language) -> None:
    found = examples(step, language)
    assert len(found) >= 2
    test = doctest.DocTest(found, everything_right(), step.name, None, 0, None)
    report: list[str] = []
    results = doctest.DocTestRunner().run(test, out=report.append)
    assert results.failed == 0, "".join(report)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_examples_are_the_same_in_every_language(step: Step) -> None:
    told = {
        language: [(one.source, one.want) for one in examples(step, language)]
        for language in LANGUAGES
    }
    assert told[Language.KO] == told[Language.EN]
    assert told[Language.JA] == told[Language.EN]


@pytest.mark.parametrize(("step", "language"), EVERY, ids=NAMES)
def test_every_number_of_a_worked_example_is_computed_in_it(step: Step, language: Language) -> None:
    worked = sections(step, language)[2]
    computed = " ".join(one.source + " " + one.want for one in examples(step, language))
    known = {abs(float(number)) for number in NUMBER.findall(computed)}
    prose = NAMED.sub("", re.sub(r"```.*?```", "", worked, flags=re.DOTALL))
    shown = NUMBER.findall(prose)
    assert len(shown) >= 8
    assert [number for number in shown if abs(float(number)) not in known] == []


@pytest.mark.parametrize(("step", "language"), EVERY, ids=NAMES)
def test_a_chapter_names_the_functions_to_write(step: Step, language: Language) -> None:
    task = sections(step, language)[3]
    assert [one.name for one in step.functions if f"`{one.name}`" not in task] == []


def test_there_is_no_text_without_a_step() -> None:
    folder = Path(words.__file__).parent / "course"
    expected = {f"{s.number:02}-{s.name}.{lang.value}.md" for s in STEPS for lang in LANGUAGES}
    expected |= {f"00-introduction.{lang.value}.md" for lang in LANGUAGES}
    assert {path.name for path in folder.iterdir()} == expected
    assert [step.number for step in STEPS] == list(range(1, 17))


def test_the_languages_are_written_in_their_script() -> None:
    for script, language in (("가-힣", Language.KO), ("ぁ-ヿ一-鿿", Language.JA)):
        for step in STEPS:
            prose = re.sub(r"```.*?```", "", chapter(step.number, step.name, language), flags=re.S)
            letters = re.findall(f"[{script}]", prose)
            assert len(letters) > 300, (step.name, language)
        assert re.search(f"[{script}]", introduction(language))


def messages(language: Language) -> dict[str, dict[str, str]]:
    path = Path(words.__file__).parent / "messages" / f"{language.value}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_the_grader_says_the_same_things_in_every_language() -> None:
    english = messages(Language.EN)
    for language in (Language.KO, Language.JA):
        other = messages(language)
        assert {s: list(t) for s, t in other.items()} == {s: list(t) for s, t in english.items()}
        for section in english.keys() - {"functions"}:
            for key, text in english[section].items():
                assert fields(other[section][key]) <= fields(text), (section, key, language)
                if section in ("problem", "work", "check"):
                    assert fields(other[section][key]) == fields(text) or key in (
                        "relative_error",
                        "mean_error",
                        "largest_error",
                    )


def test_every_mistake_and_function_has_its_sentence() -> None:
    said = messages(Language.EN)
    mistakes = {mistake.key for step in STEPS for one in step.functions for mistake in one.mistakes}
    assert mistakes == set(said["mistake"])
    assert {one.name for step in STEPS for one in step.functions} == set(said["functions"])


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.value)
def test_the_empty_file_has_every_signature_and_solves_nothing(language: Language) -> None:
    tree = ast.parse(files.template(language))
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    expected = [one for step in STEPS for one in step.functions]
    assert list(defined) == [one.name for one in expected]
    for one in expected:
        node = defined[one.name]
        assert [argument.arg for argument in node.args.args] == [p.name for p in one.parameters]
        assert ast.unparse(node.body[1]) == "raise NotImplementedError"
        assert len(node.body) == 2
        assert ast.get_docstring(node)


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.value)
def test_the_readme_is_the_whole_course(language: Language) -> None:
    text = files.readme(language)
    for step in STEPS:
        assert f"\n# {step.number}. {Words(language).title(step.number, step.name)}\n" in text


# Course function -> what of `exact` answers it.
FROM_EXACT = {
    "round_half_even": {"round_to_int"},
    "round_half_away": {"round_to_int"},
    "parting_points": {"round_to_int"},
    "mean_shift": {"round_to_int"},
    "symmetric_scale": {"choose_grid"},
    "quantize_symmetric": {"quantize"},
    "dequantize_symmetric": {"dequantize"},
    "affine_parameters": {"choose_grid"},
    "quantize_affine": {"quantize"},
    "dequantize_affine": {"dequantize"},
    "largest_error": {"largest_error"},
    "mean_error": {"mean_absolute_error"},
    "relative_error": {"relative_error"},
    "error_in_steps": {"choose_grid", "quantize", "dequantize", "largest_error"},
    "codes_used": {"codes_used"},
    "codes_kept": {"choose_grid", "quantize", "codes_used"},
    "quantize_per_tensor": {"choose_grid", "quantize"},
    "quantize_per_row": {"choose_grid", "quantize"},
    "smallest_row_errors": {"choose_grid", "quantize", "dequantize", "relative_error"},
    "integer_dot": {"integer_dot"},
    "folded_dot": {"choose_grid", "quantize", "integer_dot"},
    "first_overflow": {"clip"},
    "softmax": {"softmax"},
    "softmax_errors": {"softmax", "quantize", "dequantize", "relative_error"},
    "attention": {"attention"},
    "key_errors": {"attention", "quantize", "dequantize", "relative_error"},
    "percentile_limit": {"percentile_limit"},
    "clip_errors": {"split_error", "quantize", "dequantize"},
    "best_limit": {"quantize", "dequantize"},
    "clipped_share": {"clipped_share"},
    "quantize_blocks": {"quantize_blocks"},
    "pack_nibbles": {"pack"},
    "bits_per_value": {"bits_per_value"},
    "fixed_multiplier": {"quantize_multiplier"},
    "requantize": {"requantize_fixed_point"},
    "hessian": {"hessian"},
    "inverse": {"inverse"},
    "gptq_row": {"gptq_row"},
    "output_error": {"quadratic_error"},
    "smoothing_factors": {"smoothing_factors"},
    "smooth": {"smooth"},
    "smoothed_errors": {"smoothing_factors", "smooth", "quantize", "relative_error"},
    "quantize_by_channel": {"choose_grid", "quantize"},
    "cache_errors": {"attention", "quantize", "dequantize", "relative_error"},
    "cache_bytes": {"cache_bytes"},
    "fake_quantize": {"fake_quantize_value"},
    "straight_through": {"straight_through"},
    "train_neuron": {"fake_quantize_value", "straight_through"},
}


@pytest.mark.parametrize(
    "function", [one for step in STEPS for one in step.functions], ids=lambda one: one.name
)
def test_the_right_answer_is_computed_by_exact(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    from random import Random

    from tests.lab.calls import functions_of_exact_called

    cases = [tuple(case) for case in function.draw(Random(1))]
    called: set[str] = set()
    for case in cases[-3:]:
        called |= functions_of_exact_called(function.answer, case)
    assert FROM_EXACT[function.name] <= called


def test_the_map_to_exact_is_complete() -> None:
    assert set(FROM_EXACT) == set(everything_right())


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({"LANG": "ko_KR.UTF-8"}, Language.KO),
        ({"LANG": "ja_JP.UTF-8"}, Language.JA),
        ({"LANG": "de_DE.UTF-8"}, Language.EN),
        ({"LC_ALL": "ja", "LANG": "ko_KR.UTF-8"}, Language.JA),
        ({"LC_ALL": "C", "LANG": "ko_KR.UTF-8"}, Language.EN),
        ({"LC_ALL": "", "LC_MESSAGES": "ko_KR", "LANG": "C"}, Language.KO),
        ({}, Language.EN),
    ],
)
def test_the_locale_chooses_the_language(environment: dict[str, str], language: Language) -> None:
    assert from_locale(environment) == language
