"""How weights get their codes: by the recipe's way of rounding, and by those of its rules."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foldmark.recipes.coders import (
    AdaRoundSolver,
    BlockCoderBy,
    ChosenBlockCoder,
    ChosenCoder,
    ClippingCoder,
    CoderBy,
    GptqSolver,
    Solver,
)
from foldmark.recipes.moving import correct_biases
from foldmark.recipes.outliers import without_columns
from foldmark.recipes.recipe import MethodName, Recipe, Rounding
from foldmark.recipes.weight_schemes import weight_schemes
from foldmark.recipes.work import Work
from foldmark.surgery.weight_only import BlockCoder, block_round_to_nearest
from foldmark.surgery.weights import Coder, round_to_nearest

__all__ = ["block_coder_for", "coder_for", "default_rounding", "roundings"]

M = TypeVar("M")


def coder_for(work: Work, columns: Mapping[str, NDArray[np.int64]]) -> Coder:
    """Return what makes the weights' codes, biases corrected for it.

    Args:
        work: the quantization.
        columns: by tensor, those that the weights' codes leave out.
    """
    methods, account = work.recipe.methods, work.account
    makers = {rounding: _coder_by(work, rounding, columns) for rounding in roundings(work.recipe)}
    coder: Coder = ChosenCoder(_named(work.recipe, makers), makers[default_rounding(work.recipe)])
    if MethodName.BIAS_CORRECTION in methods:
        seen = work.inputs("bias-correction")
        schemes = weight_schemes(work.recipe)
        work.model = correct_biases(
            work.model, seen, work.selection, account, schemes=schemes, coder=coder
        )
    return without_columns(coder, columns) if columns else coder


def block_coder_for(work: Work) -> BlockCoder:
    """Return what makes the codes of weights in blocks."""
    recipe = work.recipe
    makers = {rounding: _block_coder_by(work, rounding) for rounding in roundings(recipe)}
    return ChosenBlockCoder(_named(recipe, makers), makers[default_rounding(recipe)])


def default_rounding(recipe: Recipe) -> Rounding:
    """Return how weights that no rule names get their codes."""
    for method in (MethodName.GPTQ, MethodName.ADAROUND, MethodName.MSE_CLIPPING):
        if method in recipe.methods:
            return Rounding(method.value)
    return Rounding.NEAREST


def roundings(recipe: Recipe) -> list[Rounding]:
    """Return every way in which the recipe makes codes, in order of first use."""
    named = [each.rounding for each in recipe.overrides if each.rounding is not None]
    return list(dict.fromkeys([default_rounding(recipe), *named]))


def _named(recipe: Recipe, makers: Mapping[Rounding, M]) -> tuple[tuple[str, M], ...]:
    """Return what makes codes for the nodes that the recipe's rules name."""
    return tuple(
        (each.match, makers[each.rounding])
        for each in recipe.overrides
        if each.rounding is not None
    )


def _coder_by(work: Work, rounding: Rounding, columns: Mapping[str, NDArray[np.int64]]) -> Coder:
    solver = _solver(work, rounding)
    if solver is not None:
        clip = MethodName.MSE_CLIPPING in work.recipe.methods
        return CoderBy(work.layers(rounding).without(columns), solver, clip)
    return round_to_nearest if rounding is Rounding.NEAREST else ClippingCoder(work.account)


def _block_coder_by(work: Work, rounding: Rounding) -> BlockCoder:
    solver = _solver(work, rounding)
    if solver is None:
        return block_round_to_nearest
    return BlockCoderBy(work.layers(rounding), solver)


def _solver(work: Work, rounding: Rounding) -> Solver | None:
    """Return what chooses codes with the layer's output in view, None for what looks at none."""
    if rounding is Rounding.GPTQ:
        return GptqSolver(work.account)
    if rounding is Rounding.ADAROUND:
        return AdaRoundSolver(work.account)
    return None
