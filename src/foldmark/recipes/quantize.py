"""A recipe followed: from a float model to a quantized one, with the report."""

import re
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.calibrate.calibration import Calibration, calibrate
from foldmark.calibrate.statistics import Detail
from foldmark.errors import InvalidRecipe, NothingQuantized, NotSupported
from foldmark.formats.onnx_file import read_mapped
from foldmark.formats.onnx_writer import bring_inside, fits_inside
from foldmark.graphs.exposing import uniquely_named
from foldmark.recipes.activation_ranges import all_codes, named_codes, ranges_for
from foldmark.recipes.evidence import observe_inputs
from foldmark.recipes.moving import (
    chosen_products,
    codes_of_known_range,
    codes_of_own_range,
    scale_for_awq,
    smooth,
)
from foldmark.recipes.outliers import find_outliers
from foldmark.recipes.recipe import Form, MethodName, Mode, Recipe, Rounding
from foldmark.recipes.recipe_file import recipe_text
from foldmark.recipes.rotating import rotate
from foldmark.recipes.rounding import block_coder_for, coder_for, default_rounding, roundings
from foldmark.recipes.weight_schemes import weight_schemes
from foldmark.recipes.work import Progress, Work
from foldmark.runtimes.batches import DataLike, open_data
from foldmark.surgery.account import Account, Quantized
from foldmark.surgery.activations import ActivationScheme, plan_pairs
from foldmark.surgery.ahead import Ahead
from foldmark.surgery.choice import Selection
from foldmark.surgery.dynamic import quantize_dynamic
from foldmark.surgery.editor import Editor
from foldmark.surgery.half import find_hazards, float_values, to_half
from foldmark.surgery.layers import quantize_layers
from foldmark.surgery.prepare import (
    fold_batch_norms,
    prepared_for_pairs,
    raise_opset,
    refuse_quantized,
)
from foldmark.surgery.qoperator import to_operators
from foldmark.surgery.static import StaticScheme, begin_codes, quantize_static
from foldmark.surgery.tied import store_transposed, tie_transposed
from foldmark.surgery.weight_only import (
    FLOAT_COMPUTE,
    INTEGER_COMPUTE,
    BlockScheme,
    quantize_weights,
)
from foldmark.surgery.weights import Coded, CodedWeights

__all__ = ["quantize_model"]


def quantize_model(
    model: str | Path | onnx.ModelProto,
    recipe: Recipe,
    data: DataLike = None,
    *,
    ranges: Calibration | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> Quantized:
    """Quantize a float model as a recipe says.

    Args:
        model: the float model; it is not changed.
        recipe: what to do.
        data: samples, where the recipe needs them.
        ranges: a calibration of this model, instead of running it again.
        batch_size: samples of one run while calibrating.
        progress: called with the number of samples done.

    Raises:
        BadInput: the model is already quantized.
        NoData: the recipe needs samples and there are none.
        NothingQuantized: no operator fits the recipe.
        InvalidRecipe: a pattern matches no node, or a rule does not exist.
    """
    read = read_mapped(model)
    refuse_quantized(read, "the model" if isinstance(model, onnx.ModelProto) else str(model))
    samples = None if data is None else open_data(data, read).without_labels()
    selection = Selection(recipe.choice())
    work = Work(read, recipe, samples, ranges, Account(), selection, batch_size, progress)
    made = _FOLLOW[recipe.mode](work)
    _check(work)
    tie_transposed(made)
    _describe(made, recipe)
    if fits_inside(made):
        bring_inside(made)
    return Quantized(made, work.account)


def _rotated(work: Work) -> None:
    """Rotate the model's streams when the recipe says so."""
    if MethodName.HADAMARD in work.recipe.methods:
        first = next(iter(work.samples("hadamard").batches(work.batch_size)))
        work.model = rotate(work.model, first.feeds, work.account)


def _static(work: Work) -> onnx.ModelProto:
    recipe = work.recipe
    wide = any(kind.bits == 16 for kind in all_codes(recipe))
    why = "16-bit codes" if wide else "scales per channel"
    work.model = raise_opset(work.model, 21 if wide else 13, work.account, why)
    work.model = prepared_for_pairs(work.model, work.selection, work.account)
    _move(work)
    coder = coder_for(work, {})
    editor = Editor(uniquely_named(work.model))
    schemes = weight_schemes(recipe)
    quantize_layers(editor, work.account, work.selection, schemes)
    planned = plan_pairs(editor, Account(), work.selection)
    names = list(dict.fromkeys(name for each in planned for name in each.observed()))
    activations = ActivationScheme(recipe.activations, named_codes(recipe, planned))
    with Ahead[Coded]() as ahead:
        weights = CodedWeights(editor, coder, ahead.take)
        scheme = StaticScheme(activations, schemes, weights, ahead)
        if roundings(recipe) == [Rounding.NEAREST]:
            # These codes depend on no sample; making a session for the model leaves a core idle.
            begin_codes(planned, scheme, work.selection)
        ranges, unseen = ranges_for(work, editor.model, names, activations)
        plans = plan_pairs(editor, work.account, work.selection, unseen)
        if not any(plan.products for plan in plans):
            return editor.finish()
        quantize_static(editor, work.account, plans, ranges, scheme, selection=work.selection)
    made = editor.finish()
    return to_operators(made, work.account) if recipe.form is Form.QOPERATOR else made


def _move(work: Work) -> None:
    """Apply the methods that change the float model without changing what it computes."""
    _rotated(work)
    if MethodName.SMOOTHQUANT in work.recipe.methods:
        seen = work.inputs("smoothquant")
        schemes = weight_schemes(work.recipe)
        static = work.recipe.mode is Mode.STATIC
        as_codes = codes_of_known_range if static else codes_of_own_range
        work.model = smooth(
            work.model, seen, work.selection, work.account, schemes=schemes, as_codes=as_codes
        )


def _dynamic(work: Work) -> onnx.ModelProto:
    work.model = _with_transposed(
        raise_opset(work.model, 11, work.account, "DynamicQuantizeLinear"), work.selection
    )
    folding = Editor(work.model)
    fold_batch_norms(folding, work.account)
    work.model = folding.finish()
    _move(work)
    columns = _outliers(work)
    coder = coder_for(work, columns or {})
    editor = Editor(work.model)
    schemes = weight_schemes(work.recipe)
    quantize_layers(editor, work.account, work.selection, schemes)
    quantize_dynamic(editor, work.account, schemes, work.selection, coder, columns=columns)
    return editor.finish()


def _outliers(work: Work) -> dict[str, NDArray[np.int64]] | None:
    """Return the columns of each tensor that stay in float, None without outlier-split."""
    if MethodName.OUTLIER_SPLIT not in work.recipe.methods:
        return None
    products = [
        each
        for each in chosen_products(Editor(work.model), work.selection)
        if each.node.op_type in ("MatMul", "Gemm")
    ]
    samples = work.samples("outlier-split")
    seen = observe_inputs(work.model, products, samples, work.batch_size)
    tables = {node.input[0] for node in work.model.graph.node if node.op_type == "Gather"}
    return find_outliers(products, seen, work.recipe.outlier_threshold, work.account, tables)


def _with_transposed(model: onnx.ModelProto, selection: Selection) -> onnx.ModelProto:
    editor = Editor(model)
    store_transposed(editor, selection)
    return editor.finish()


def _weight_only(work: Work) -> onnx.ModelProto:
    recipe = work.recipe
    if recipe.rule != "onnxruntime":
        raise NotSupported(
            "not supported: another rule for weights in blocks", got=f"rule {recipe.rule!r}"
        )
    scheme = BlockScheme(
        recipe.weight_bits,
        recipe.block_size,
        recipe.symmetric,
        INTEGER_COMPUTE if recipe.integer_compute else FLOAT_COMPUTE,
    )
    methods = recipe.methods
    work.model = _with_transposed(work.model, work.selection)
    _rotated(work)
    if MethodName.AWQ in methods:
        seen = work.inputs("awq")
        clip = default_rounding(recipe) is Rounding.NEAREST
        work.model = scale_for_awq(
            work.model, seen, work.selection, scheme, work.account, clip=clip
        )
    editor = Editor(work.model)
    quantize_weights(editor, work.account, scheme, work.selection, block_coder_for(work))
    return editor.finish()


def _float16(work: Work) -> onnx.ModelProto:
    seen = {}
    values = float_values(work.model)
    if not values:
        raise NothingQuantized("the model holds no float32 value", where="the model")
    if work.data is not None:
        found = calibrate(
            work.model,
            work.data,
            tensors=values,
            detail=Detail.ENDS,
            batch_size=1,
            progress=work.progress,
        )
        seen = found.tensors
    else:
        work.account.note("no data: only constants and epsilons were checked, not values")
    hazards = find_hazards(work.model, seen)
    return to_half(work.model, hazards, work.account)


_FOLLOW = {
    Mode.STATIC: _static,
    Mode.DYNAMIC: _dynamic,
    Mode.WEIGHT_ONLY: _weight_only,
    Mode.FLOAT16: _float16,
}


def _check(work: Work) -> None:
    """Refuse a recipe that did nothing, and one with patterns that matched nothing."""
    if not work.account.done:
        reasons = "; ".join(f"{op}: {why}" for op, why, _ in work.account.reasons()[:3])
        raise NothingQuantized(
            "nothing here was quantized", where="the model", got=reasons or "no such operator"
        )
    unused = [*work.selection.unused()]
    names = [done.node for done in work.account.done]
    names += [left.node for left in work.account.left]
    for each in work.recipe.overrides:
        if not each.keep_float and not any(re.search(each.match, name) for name in names):
            unused.append(each.match)
    if unused:
        raise InvalidRecipe(
            "a pattern matches no operator",
            where=f"recipe {work.recipe.name!r}",
            got=", ".join(map(repr, unused)),
        )


def _describe(model: onnx.ModelProto, recipe: Recipe) -> None:
    """Write the recipe into the model, so that the file says how it was made."""
    for key, value in (("foldmark.recipe", recipe_text(recipe)),):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
