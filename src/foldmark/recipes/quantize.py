"""A recipe followed: from a float model to a quantized one, with the report."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark import rules
from foldmark.calibrate.calibration import Calibration, calibrate
from foldmark.calibrate.observers import Method, Observer, Range, Symmetry
from foldmark.calibrate.statistics import Detail
from foldmark.errors import InvalidRecipe, NoData, NothingQuantized, NotSupported
from foldmark.exact.rule import Rule, ZeroForm
from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8
from foldmark.formats.onnx_file import read_mapped
from foldmark.formats.onnx_writer import bring_inside, fits_inside
from foldmark.graphs.exposing import uniquely_named
from foldmark.methods.hessian import Inputs
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
from foldmark.recipes.evidence import Evidence, observe_inputs, observe_layers
from foldmark.recipes.moving import (
    chosen_products,
    codes_of_known_range,
    codes_of_own_range,
    correct_biases,
    scale_for_awq,
    smooth,
)
from foldmark.recipes.outliers import find_outliers, without_columns
from foldmark.recipes.recipe import Form, MethodName, Mode, Recipe, Rounding
from foldmark.recipes.recipe_file import recipe_text
from foldmark.recipes.rotating import rotate
from foldmark.runtimes.batches import Data, DataLike, open_data
from foldmark.runtimes.inputs import describe_inputs, model_inputs
from foldmark.surgery.account import Account, Quantized
from foldmark.surgery.activations import ActivationCodes, ActivationScheme, Plan, plan_pairs
from foldmark.surgery.ahead import Ahead
from foldmark.surgery.choice import Choice, Selection
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
    BlockCoder,
    BlockScheme,
    block_round_to_nearest,
    quantize_weights,
)
from foldmark.surgery.weights import (
    Coded,
    CodedWeights,
    Coder,
    WeightScheme,
    WeightSchemes,
    round_to_nearest,
)

__all__ = ["quantize_model"]

Progress = Callable[[int], None]
M = TypeVar("M")


@dataclass
class _Work:
    """What one quantization needs to hand on from step to step."""

    model: onnx.ModelProto
    recipe: Recipe
    data: Data | None
    ranges: Mapping[str, Range] | Calibration | None
    account: Account
    selection: Selection
    batch_size: int
    progress: Progress | None

    def samples(self, why: str) -> Data:
        """Return the data, or raise NoData saying what it is needed for."""
        if self.data is None:
            raise NoData(
                f"{why} needs data",
                where=f"recipe {self.recipe.name!r}",
                expected=f"samples of {describe_inputs(model_inputs(self.model))}",
                todo="give --data, or --ranges from foldmark calibrate; --data random:64 to try it",
            )
        return self.data


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
    exclude = (*recipe.exclude, *(o.match for o in recipe.overrides if o.keep_float))
    selection = Selection(Choice(recipe.operators, recipe.include, exclude))
    work = _Work(read, recipe, samples, ranges, Account(), selection, batch_size, progress)
    made = _FOLLOW[recipe.mode](work)
    _check(work)
    tie_transposed(made)
    _describe(made, recipe)
    if fits_inside(made):
        bring_inside(made)
    return Quantized(made, work.account)


def _rotated(work: _Work) -> None:
    """Rotate the model's streams when the recipe says so."""
    if MethodName.HADAMARD in work.recipe.methods:
        first = next(iter(work.samples("hadamard").batches(work.batch_size)))
        work.model = rotate(work.model, first.feeds, work.account)


def _static(work: _Work) -> onnx.ModelProto:
    recipe = work.recipe
    wide = any(kind.bits == 16 for kind in _all_codes(recipe))
    why = "16-bit codes" if wide else "scales per channel"
    work.model = raise_opset(work.model, 21 if wide else 13, work.account, why)
    work.model = prepared_for_pairs(work.model, work.selection, work.account)
    _move(work)
    coder = _coder(work, {})
    editor = Editor(uniquely_named(work.model))
    schemes = _schemes(recipe)
    quantize_layers(editor, work.account, work.selection, schemes)
    planned = plan_pairs(editor, Account(), work.selection)
    names = list(dict.fromkeys(name for each in planned for name in each.observed()))
    activations = ActivationScheme(recipe.activations, _named_codes(recipe, planned))
    with Ahead[Coded]() as ahead:
        weights = CodedWeights(editor, coder, ahead.take)
        scheme = StaticScheme(activations, schemes, weights, ahead)
        if _roundings(recipe) == [Rounding.NEAREST]:
            # These codes depend on no sample; making a session for the model leaves a core idle.
            begin_codes(planned, scheme, work.selection)
        ranges, unseen = _ranges(work, editor.model, names, activations)
        plans = plan_pairs(editor, work.account, work.selection, unseen)
        if not any(plan.products for plan in plans):
            return editor.finish()
        quantize_static(editor, work.account, plans, ranges, scheme, selection=work.selection)
    made = editor.finish()
    return to_operators(made, work.account) if recipe.form is Form.QOPERATOR else made


def _move(work: _Work) -> None:
    """Apply the methods that change the float model without changing what it computes."""
    _rotated(work)
    if MethodName.SMOOTHQUANT in work.recipe.methods:
        seen = _inputs(work, "smoothquant")
        schemes = _schemes(work.recipe)
        static = work.recipe.mode is Mode.STATIC
        as_codes = codes_of_known_range if static else codes_of_own_range
        work.model = smooth(
            work.model, seen, work.selection, work.account, schemes=schemes, as_codes=as_codes
        )


def _coder(work: _Work, columns: Mapping[str, NDArray[np.int64]]) -> Coder:
    """Return what makes the weights' codes, biases corrected for it.

    Args:
        work: the quantization.
        columns: by tensor, those that the weights' codes leave out.
    """
    methods, account = work.recipe.methods, work.account
    makers = {rounding: _coder_by(work, rounding, columns) for rounding in _roundings(work.recipe)}
    coder: Coder = ChosenCoder(_named(work.recipe, makers), makers[_rounding(work.recipe)])
    if MethodName.BIAS_CORRECTION in methods:
        seen = _inputs(work, "bias-correction")
        schemes = _schemes(work.recipe)
        work.model = correct_biases(
            work.model, seen, work.selection, account, schemes=schemes, coder=coder
        )
    return without_columns(coder, columns) if columns else coder


def _rounding(recipe: Recipe) -> Rounding:
    """Return how weights that no rule names get their codes."""
    for method in (MethodName.GPTQ, MethodName.ADAROUND, MethodName.MSE_CLIPPING):
        if method in recipe.methods:
            return Rounding(method.value)
    return Rounding.NEAREST


def _roundings(recipe: Recipe) -> list[Rounding]:
    """Return every way in which the recipe makes codes, in order of first use."""
    named = [each.rounding for each in recipe.overrides if each.rounding is not None]
    return list(dict.fromkeys([_rounding(recipe), *named]))


def _named(recipe: Recipe, makers: Mapping[Rounding, M]) -> tuple[tuple[str, M], ...]:
    """Return what makes codes for the nodes that the recipe's rules name."""
    return tuple(
        (each.match, makers[each.rounding])
        for each in recipe.overrides
        if each.rounding is not None
    )


def _coder_by(work: _Work, rounding: Rounding, columns: Mapping[str, NDArray[np.int64]]) -> Coder:
    solver = _solver(work, rounding)
    if solver is not None:
        clip = MethodName.MSE_CLIPPING in work.recipe.methods
        return CoderBy(_layers(work, rounding).without(columns), solver, clip)
    return round_to_nearest if rounding is Rounding.NEAREST else ClippingCoder(work.account)


def _block_coder_by(work: _Work, rounding: Rounding) -> BlockCoder:
    solver = _solver(work, rounding)
    if solver is None:
        return block_round_to_nearest
    return BlockCoderBy(_layers(work, rounding), solver)


def _solver(work: _Work, rounding: Rounding) -> Solver | None:
    """Return what chooses codes with the layer's output in view, None for what looks at none."""
    if rounding is Rounding.GPTQ:
        return GptqSolver(work.account)
    if rounding is Rounding.ADAROUND:
        return AdaRoundSolver(work.account)
    return None


def _layers(work: _Work, rounding: Rounding) -> Evidence:
    """Return the second moments of what the chosen products read, over the data."""
    products = chosen_products(Editor(work.model), work.selection)
    return observe_layers(work.model, products, work.samples(rounding.value), work.batch_size)


def _inputs(work: _Work, method: str) -> dict[str, Inputs]:
    """Return what the chosen products read, over the data."""
    products = chosen_products(Editor(work.model), work.selection)
    return observe_inputs(work.model, products, work.samples(method), work.batch_size)


def _all_codes(recipe: Recipe) -> list[ActivationCodes]:
    """Return the codes that activations get, the most usual first."""
    return list(dict.fromkeys((recipe.activations, *(each.codes for each in recipe.codes))))


def _named_codes(recipe: Recipe, plans: Sequence[Plan]) -> dict[str, ActivationCodes]:
    """Return the codes that the recipe names; each must be of an activation that has its own."""
    shared = {name: plan.source(name).tensor for plan in plans for name in plan.pairs}
    own = set(shared.values())
    for each in recipe.codes:
        if each.tensor not in own:
            instead = shared.get(each.tensor)
            some = f"one of {', '.join(sorted(own)[:3])}, ..."
            raise InvalidRecipe(
                "codes are given for a tensor that has none of its own",
                where=f"recipe {recipe.name!r}",
                got=repr(each.tensor),
                expected=f"{instead!r}, whose codes it has" if instead else some,
            )
    return {each.tensor: each.codes for each in recipe.codes}


def _ranges(
    work: _Work, model: onnx.ModelProto, tensors: list[str], activations: ActivationScheme
) -> tuple[dict[str, Range], tuple[str, ...]]:
    """Return the ranges of tensors, and those of which the data showed nothing."""
    observer = _observer(work.recipe.observer, work.recipe.activations)
    if not tensors:
        return {}, ()
    if isinstance(work.ranges, Calibration) and MethodName.HADAMARD in work.recipe.methods:
        raise InvalidRecipe(
            "a rotation changes the ranges of what it rotates",
            where=f"recipe {work.recipe.name!r}",
            todo="give --data instead of --ranges",
        )
    settled = _settled(work.recipe, tensors)
    if isinstance(work.ranges, Calibration):
        return _chosen(work.ranges, observer, activations) | settled, work.ranges.unseen
    found = calibrate(
        model,
        work.samples("static quantization"),
        observer=observer,
        tensors=tensors,
        batch_size=work.batch_size,
        progress=work.progress,
    )
    flat = [name for name, each in found.tensors.items() if each.minimum == each.maximum == 0]
    for name in flat:
        work.account.note(f"{name}: zero in all samples; its codes have no range to stand for")
    if observer.method is not Method.MIN_MAX:
        same, count = found.unchanged(observer)
        if same:
            work.account.note(f"{observer.method.value} gave min-max on {same} of {count} tensors")
    return _chosen(found, observer, activations) | settled, found.unseen


def _settled(recipe: Recipe, tensors: list[str]) -> dict[str, Range]:
    """Return the ranges that the recipe settles; each must be of an activation that gets codes."""
    for each in recipe.ranges:
        if each.tensor not in tensors:
            raise InvalidRecipe(
                "a range is given for a tensor that needs none",
                where=f"recipe {recipe.name!r}",
                got=repr(each.tensor),
                expected=f"one of {', '.join(tensors[:3])}, ...",
            )
    return {each.tensor: Range(each.low, each.high) for each in recipe.ranges}


def _chosen(
    seen: Calibration, observer: Observer, activations: ActivationScheme
) -> dict[str, Range]:
    """Return all ranges: by the observer, or the whole where a tensor has 16 bits of its own."""
    ranges = seen.ranges(observer)
    for codes in set(activations.named.values()):
        whole = replace(observer, method=Method.MIN_MAX) if codes.bits == 16 else observer
        own = seen.ranges(_observer(whole, codes))
        names = [name for name, each in activations.named.items() if each is codes]
        ranges |= {name: own[name] for name in names if name in own}
    return ranges


def _observer(observer: Observer, codes: ActivationCodes) -> Observer:
    """Return an observer for the bits of codes; int16 has no free ends."""
    if codes is ActivationCodes.INT16:
        observer = replace(observer, symmetry=Symmetry.SYMMETRIC)
    return replace(observer, bits=16) if codes.bits == 16 else observer


def _dynamic(work: _Work) -> onnx.ModelProto:
    work.model = _with_transposed(
        raise_opset(work.model, 11, work.account, "DynamicQuantizeLinear"), work.selection
    )
    folding = Editor(work.model)
    fold_batch_norms(folding, work.account)
    work.model = folding.finish()
    _move(work)
    columns = _outliers(work)
    coder = _coder(work, columns or {})
    editor = Editor(work.model)
    schemes = _schemes(work.recipe)
    quantize_layers(editor, work.account, work.selection, schemes)
    quantize_dynamic(editor, work.account, schemes, work.selection, coder, columns=columns)
    return editor.finish()


def _outliers(work: _Work) -> dict[str, NDArray[np.int64]] | None:
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


def _weight_only(work: _Work) -> onnx.ModelProto:
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
        seen = _inputs(work, "awq")
        clip = _rounding(recipe) is Rounding.NEAREST
        work.model = scale_for_awq(
            work.model, seen, work.selection, scheme, work.account, clip=clip
        )
    makers = {rounding: _block_coder_by(work, rounding) for rounding in _roundings(recipe)}
    coder = ChosenBlockCoder(_named(recipe, makers), makers[_rounding(recipe)])
    editor = Editor(work.model)
    quantize_weights(editor, work.account, scheme, work.selection, coder)
    return editor.finish()


def _float16(work: _Work) -> onnx.ModelProto:
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


def _schemes(recipe: Recipe) -> WeightSchemes:
    default = WeightScheme(_rule(recipe.rule), recipe.per_channel)
    named = []
    for each in recipe.overrides:
        if each.keep_float:
            continue
        channel = recipe.per_channel if each.per_channel is None else each.per_channel
        named.append((each.match, WeightScheme(_rule(each.rule or recipe.rule), channel)))
    return WeightSchemes(default, tuple(named))


def _rule(name: str) -> Rule:
    """Return the rule of 8-bit weights that a recipe names.

    Raises InvalidRecipe for one that does not exist or whose codes no integer kernel takes.
    """
    if name == "onnxruntime":
        return ONNXRUNTIME_WEIGHT_INT8
    found = rules.CATALOGUE.get(name)
    if not isinstance(found, Rule):
        raise InvalidRecipe(
            "no such rule", where=f"rule {name!r}", todo="foldmark rules lists them"
        )
    fits = found.codes.bits == 8 and found.codes.minimum < 0
    if not fits or found.zero_point.form is not ZeroForm.FIXED or found.zero_point.fixed != 0:
        raise InvalidRecipe(
            "integer kernels take int8 weights with zero point 0",
            where=f"rule {name!r}",
            got=found.codes.name,
        )
    return found


def _check(work: _Work) -> None:
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
