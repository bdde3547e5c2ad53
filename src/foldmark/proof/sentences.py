"""The verdict of a proof in sentences that a person can act on."""

from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8_REDUCED
from foldmark.proof.kernels import Executor, Kernels
from foldmark.proof.quality import Quality
from foldmark.proof.verify import Proof
from foldmark.runtimes.onnxruntime import EXACT_SUMS
from foldmark.runtimes.timing import Comparison

__all__ = [
    "bound_sentence",
    "integer_sentence",
    "quality_words",
    "saturation_sentence",
    "signed_sentence",
    "verdict",
]

_HOW = {
    Executor.FLOAT: "in float, on weights that are float",
    Executor.FLOAT_DECODED: "in float, on weights decoded when the model loads",
    Executor.FLOAT_DEQUANTIZED: "in float, on weights dequantized at every run",
    Executor.FLOAT_UNPACKED: "in float, on weights unpacked inside the kernel",
}


def verdict(proof: Proof) -> str:
    """Return size, speed and quality in one sentence, never one of them alone."""
    times = proof.float_size.total / proof.size.total
    size = f"{times:.2f} times smaller" if times >= 1 else f"{1 / times:.2f} times larger"
    speed = ", ".join(speed_words(each) for each in proof.speeds)
    return f"{size}; {speed}; {quality_words(proof.quality)}."


def speed_words(speed: Comparison) -> str:
    """Return one batch size's speed in words."""
    ratio = speed.ratio
    if speed.within_noise:
        return f"no difference in speed beyond noise at batch {speed.samples}"
    if ratio.value >= 1:
        return f"{ratio.value:.2f} times faster at batch {speed.samples}"
    return f"{1 / ratio.value:.2f} times slower at batch {speed.samples}"


def quality_words(quality: Quality) -> str:
    """Return the quality in words: the score, else the agreement, else the distance."""
    if quality.score is not None:
        score = quality.score
        sure = "within noise" if score.change.low <= 0 <= score.change.high else "a real change"
        return f"{score.name} {score.float_score:.4g} -> {score.quantized_score:.4g} ({sure})"
    if quality.top1_agreement is not None:
        of = "samples" if quality.rows == 1 else "rows of the output"
        return f"the same best class for {100 * quality.top1_agreement.value:.1f} % of the {of}"
    worst = max(quality.outputs, key=lambda each: each.relative)
    return f"outputs {100 * worst.relative:.3g} % away, 1 - cosine {worst.cosine:.2g}"


def integer_sentence(proof: Proof) -> str:
    """Return who did the multiplying."""
    kernels = proof.kernels
    if not kernels.weight_macs:
        return "No operator with a stored weight was executed."
    if kernels.hidden:
        return f"{_integer_words(kernels)} {_hidden_words(kernels)}"
    return _integer_words(kernels)


def _hidden_words(kernels: Kernels) -> str:
    names = ", ".join(kernels.hidden[:3])
    return f"What ran inside {names} is not shown by the runtime and not counted."


def _integer_words(kernels: Kernels) -> str:
    share = kernels.integer_share
    if share == 1:
        return "Every multiply-accumulate with a weight ran on integers."
    others = [
        each.executor
        for each in kernels.shares
        if each.executor not in (Executor.INTEGER, Executor.FLOAT_ACTIVATIONS)
    ]
    how = " and ".join(_HOW[each] for each in others)
    if share == 0:
        return f"No multiply-accumulate of the weights ran on integers: they ran {how}."
    return (
        f"{100 * share:.1f} % of the weights' multiply-accumulates ran on integers; "
        f"the rest ran {how}."
    )


def bound_sentence(proof: Proof) -> str:
    """Return whether integers could make this model faster at all on this machine."""
    bound = proof.bound
    limit = "reading the weights" if bound.memory_bound > 0.5 else "multiplying"
    if bound.speedup < 1.1:
        return (
            f"It could hardly be faster: products with weights take {100 * bound.product_share:.0f}"
            f" % of the float model's time, so int8 can gain at most {bound.speedup:.2f} times."
        )
    roofs = bound.roofs
    return (
        f"At most {bound.speedup:.3g} times faster is possible here: products with weights take "
        f"{100 * bound.product_share:.0f} % of the float model's time, and are limited by {limit} "
        f"(measured: {_giga(roofs.float_macs)} float and {_giga(roofs.integer_macs)} integer "
        f"multiply-accumulates and {_giga(roofs.bytes_read)} bytes read a second)."
    )


def signed_sentence(proof: Proof) -> str:
    """Return which integer kernels are slow on x86, and how slow they were; "" when none is."""
    found = proof.kernels.signed
    if not found or not proof.machine.is_x86:
        return ""
    names = ", ".join(each.node for each in found[:3]) + ", ..." * (len(found) > 3)
    seconds = sum(each.seconds for each in found)
    speed = _giga(sum(each.macs for each in found) / seconds) if seconds else "too many"
    kinds = {"weights" if each.operator == "ConvInteger" else "activations" for each in found}
    return (
        f"{len(found)} integer kernel{'s' * (len(found) > 1)} ({names}) multiplied int8 "
        f"{' and '.join(sorted(kinds))}, for which ONNX Runtime has no fast kernel on most x86 "
        f"processors: {speed} multiply-accumulates a second; uint8 codes reach "
        f"{_giga(proof.bound.roofs.integer_macs)} in a large product."
    )


def _giga(speed: float) -> str:
    return f"{speed / 1e9:.3g} G"


def saturation_sentence(proof: Proof) -> str:
    """Return what a processor without VNNI would make of the u8 x s8 products; "" when none."""
    if not proof.saturations:
        return ""
    saturated = sum(each.saturated for each in proof.saturations)
    examined = sum(each.examined for each in proof.saturations)
    here = {True: "this one included", False: "not this one", None: "this one is not known"}
    where = f"processors without VNNI ({here[proof.machine.saturates]})"
    if not saturated:
        return f"No pair of u8 x s8 products saturates on {where}, of {examined:,} examined."
    hit = [each for each in proof.saturations if each.saturated]
    return (
        f"{saturated:,} of {examined:,} pairs of u8 x s8 products in {len(hit)} of "
        f"{len(proof.saturations)} operators saturate on {where}; 7-bit weights (--rule "
        f"{ONNXRUNTIME_WEIGHT_INT8_REDUCED.name}) would not, nor ONNX Runtime's u8 x u8 kernels "
        f"(session option {EXACT_SUMS} = 1)."
        f"{_cost_words(proof)}"
    )


def _cost_words(proof: Proof) -> str:
    """Return what saturation would do to the quality, measured with that instruction's sums."""
    cost = proof.saturation_cost
    if cost is None:
        return ""
    exact, cut = cost.exact, cost.saturated
    if exact.score is not None and cut.score is not None:
        what = f"{exact.score.name} {cut.score.quantized_score:.4g}"
        instead = f"{exact.score.quantized_score:.4g}"
    elif exact.top1_agreement is not None and cut.top1_agreement is not None:
        what = f"the same best class as float for {100 * cut.top1_agreement.value:.1f} %"
        instead = f"{100 * exact.top1_agreement.value:.1f} %"
    else:
        far, near = (max(q.outputs, key=lambda each: each.relative) for q in (cut, exact))
        what = f"outputs {100 * far.relative:.3g} % away from float"
        instead = f"{100 * near.relative:.3g} %"
    return f" Run so, it gives {what} instead of {instead}, on {cost.samples} samples."
