"""Recipes as TOML: read, written into artefacts, and the built-in ones."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from foldmark.calibrate.observers import Method, Observer, Symmetry
from foldmark.errors import FileUnreadable, InvalidRecipe, InvalidScheme
from foldmark.recipes.recipe import (
    Form,
    MethodName,
    Mode,
    Override,
    Recipe,
    Rounding,
    TensorCodes,
    TensorRange,
)
from foldmark.surgery.activations import ActivationCodes

__all__ = ["BUILT_IN", "find_recipe", "parse_recipe", "recipe_text"]

E = TypeVar("E", bound=Enum)

BUILT_IN: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe(name="static"),
        Recipe(name="dynamic", mode=Mode.DYNAMIC),
        Recipe(name="weight-only-8", mode=Mode.WEIGHT_ONLY, weight_bits=8),
        Recipe(name="weight-only-4", mode=Mode.WEIGHT_ONLY, weight_bits=4, symmetric=False),
        Recipe(name="float16", mode=Mode.FLOAT16),
    )
}


def find_recipe(text: str) -> Recipe:
    """Return the built-in recipe of that name, or the one in the TOML file at that path.

    A built-in name may be followed by methods: `static+smoothquant+gptq`.
    """
    base, *methods = text.split("+")
    if base in BUILT_IN:
        named = tuple(_enum(each, MethodName, "a method", f"recipe {text!r}") for each in methods)
        return replace(BUILT_IN[base], name=text, methods=named)
    path = Path(text)
    if not path.is_file():
        raise FileUnreadable(
            "no such recipe",
            where=text,
            expected=f"a TOML file, or one of {', '.join(BUILT_IN)}, +METHOD behind it",
        )
    return parse_recipe(path.read_text(encoding="utf-8"), str(path))


def parse_recipe(text: str, where: str) -> Recipe:
    """Return the recipe that a TOML text describes.

    Raises InvalidRecipe for a key that means nothing or a value that can't be.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRecipe("not TOML", where=where, got=str(error)) from None
    reader = _Reader(document, where)
    named = reader.take("base", str, "static")
    if named.split("+")[0] not in BUILT_IN:
        raise InvalidRecipe("no such base", where=where, expected=", ".join(BUILT_IN))
    base = find_recipe(named)
    recipe = replace(
        base,
        name=reader.take("name", str, Path(where).stem),
        mode=reader.enum("mode", Mode, base.mode),
        form=reader.enum("form", Form, base.form),
        operators=reader.texts("operators", base.operators),
        include=reader.texts("include", base.include),
        exclude=reader.texts("exclude", base.exclude),
        weight_bits=reader.take("weight_bits", int, base.weight_bits),
        per_channel=reader.take("per_channel", bool, base.per_channel),
        symmetric=reader.take("symmetric", bool, base.symmetric),
        block_size=reader.take("block_size", int, base.block_size),
        integer_compute=reader.take("integer_compute", bool, base.integer_compute),
        rule=reader.take("rule", str, base.rule),
        activations=reader.enum("activations", ActivationCodes, base.activations),
        methods=tuple(
            _enum(each, MethodName, "methods", where)
            for each in reader.texts("methods", tuple(m.value for m in base.methods))
        ),
        outlier_threshold=float(reader.take("outlier_threshold", float, base.outlier_threshold)),
        observer=_observer(reader.take("observer", dict, {}), where),
        overrides=tuple(_override(each, where) for each in reader.take("rules", list, [])),
        ranges=tuple(_range(each, where) for each in reader.take("ranges", list, [])),
        codes=tuple(_codes(each, where) for each in reader.take("codes", list, [])),
    )
    reader.done()
    return recipe


def recipe_text(recipe: Recipe) -> str:
    """Return the recipe as TOML, complete: what reads it needs no defaults."""
    observer = recipe.observer
    lines = [
        f"name = {json.dumps(recipe.name)}",
        f'mode = "{recipe.mode.value}"',
        f'form = "{recipe.form.value}"',
        f"operators = {json.dumps(list(recipe.operators))}",
        f"include = {json.dumps(list(recipe.include))}",
        f"exclude = {json.dumps(list(recipe.exclude))}",
        f"weight_bits = {recipe.weight_bits}",
        f"per_channel = {json.dumps(recipe.per_channel)}",
        f"symmetric = {json.dumps(recipe.symmetric)}",
        f"block_size = {recipe.block_size}",
        f"integer_compute = {json.dumps(recipe.integer_compute)}",
        f"rule = {json.dumps(recipe.rule)}",
        f'activations = "{recipe.activations.value}"',
        f"methods = {json.dumps([each.value for each in recipe.methods])}",
        f"outlier_threshold = {float(recipe.outlier_threshold)!r}",
        "",
        "[observer]",
        f'method = "{observer.method.value}"',
        f"symmetric = {json.dumps(observer.symmetry is Symmetry.SYMMETRIC)}",
        f"bits = {observer.bits}",
        f"percentile = {observer.percentile!r}",
        f"constant = {observer.constant!r}",
    ]
    for each in recipe.overrides:
        lines += ["", "[[rules]]", f"match = {json.dumps(each.match)}"]
        lines += [f"keep_float = {json.dumps(each.keep_float)}"]
        if each.per_channel is not None:
            lines.append(f"per_channel = {json.dumps(each.per_channel)}")
        if each.rounding is not None:
            lines.append(f'rounding = "{each.rounding.value}"')
        if each.rule:
            lines.append(f"rule = {json.dumps(each.rule)}")
    for settled in recipe.ranges:
        lines += ["", "[[ranges]]", f"tensor = {json.dumps(settled.tensor)}"]
        lines += [f"low = {settled.low!r}", f"high = {settled.high!r}"]
    for own in recipe.codes:
        lines += ["", "[[codes]]", f"tensor = {json.dumps(own.tensor)}"]
        lines += [f'codes = "{own.codes.value}"']
    return "\n".join(lines) + "\n"


class _Reader:
    """A table whose keys are taken one by one, so that what is left over is a mistake."""

    def __init__(self, table: dict[str, Any], where: str) -> None:
        self._left = dict(table)
        self._where = where

    def take(self, key: str, kind: Callable[..., Any], default: Any) -> Any:
        if key not in self._left:
            return default
        value = self._left.pop(key)
        wrong = not isinstance(value, kind)  # type: ignore[arg-type]
        if wrong or (kind is int and isinstance(value, bool)):
            raise InvalidRecipe(
                f"{key} is of the wrong kind",
                where=self._where,
                got=repr(value),
                expected=getattr(kind, "__name__", ""),
            )
        return value

    def number(self, key: str) -> float:
        value = self._left.pop(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRecipe(f"{key} is a number", where=self._where, got=repr(value))
        return float(value)

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self.take(key, list, list(default))
        if not all(isinstance(each, str) for each in value):
            raise InvalidRecipe(f"{key} holds something that is not a text", where=self._where)
        return tuple(value)

    def enum(self, key: str, kind: type[E], default: E) -> E:
        value = self.take(key, str, default.value)
        return _enum(value, kind, key, self._where)

    def done(self) -> None:
        if self._left:
            raise InvalidRecipe(
                f"{next(iter(self._left))} means nothing in a recipe", where=self._where
            )


def _enum(value: str, kind: type[E], key: str, where: str) -> E:
    try:
        return kind(value)
    except ValueError:
        expected = ", ".join(str(each.value) for each in kind)
        raise InvalidRecipe(
            f"{key} can't be that", where=where, got=repr(value), expected=expected
        ) from None


def _observer(table: dict[str, Any], where: str) -> Observer:
    reader = _Reader(table, where)
    symmetric = reader.take("symmetric", bool, False)
    try:
        found = Observer(
            reader.enum("method", Method, Method.MIN_MAX),
            Symmetry.SYMMETRIC if symmetric else Symmetry.AFFINE,
            reader.take("bits", int, 8),
            float(reader.take("percentile", float, 99.999)),
            float(reader.take("constant", float, 0.01)),
        )
    except InvalidScheme as error:
        raise InvalidRecipe(error.what, where=where, got=error.got) from None
    reader.done()
    return found


def _override(table: dict[str, Any], where: str) -> Override:
    if not isinstance(table, dict):
        raise InvalidRecipe("rules is a list of tables", where=where)
    reader = _Reader(table, where)
    rounding = reader.take("rounding", str, "")
    found = Override(
        reader.take("match", str, ""),
        reader.take("keep_float", bool, False),
        reader.take("per_channel", bool, None),
        reader.take("rule", str, ""),
        _enum(rounding, Rounding, "rounding", where) if rounding else None,
    )
    if not found.match:
        raise InvalidRecipe("a rule says what it matches", where=where, expected='match = "..."')
    reader.done()
    return found


def _range(table: dict[str, Any], where: str) -> TensorRange:
    if not isinstance(table, dict):
        raise InvalidRecipe("ranges is a list of tables", where=where)
    reader = _Reader(table, where)
    found = TensorRange(reader.take("tensor", str, ""), reader.number("low"), reader.number("high"))
    if not found.tensor:
        raise InvalidRecipe("a range says whose it is", where=where, expected='tensor = "..."')
    reader.done()
    return found


def _codes(table: dict[str, Any], where: str) -> TensorCodes:
    if not isinstance(table, dict):
        raise InvalidRecipe("codes is a list of tables", where=where)
    reader = _Reader(table, where)
    tensor = reader.take("tensor", str, "")
    if not tensor:
        raise InvalidRecipe("codes say whose they are", where=where, expected='tensor = "..."')
    kind = _enum(reader.take("codes", str, ""), ActivationCodes, "codes", where)
    reader.done()
    return TensorCodes(tensor, kind)
