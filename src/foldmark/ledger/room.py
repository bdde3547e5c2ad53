"""Whether an account fits into memory, asked before anything long is run.

What is refused can't fit: the factors are the least that was measured, not the usual.
"""

import onnx

from foldmark.errors import NotEnoughMemory
from foldmark.formats.onnx_tensor import byte_count
from foldmark.runtimes.memory import available_memory

__all__ = ["check_batch", "check_weights"]

# Weights with part of their errors, their gradients, and their codes a few times.
_WEIGHTS = 3.0
# Errors, tensors and gradients of a batch, and what its backward run keeps of the forward one.
_BATCH = 12
# Less than this is never asked about.
_LITTLE = 1 << 30


def check_weights(model: onnx.ModelProto) -> None:
    """Raise NotEnoughMemory when the account of a float model's weights can't fit."""
    stored = sum(
        byte_count(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    )
    needed, free = round(_WEIGHTS * stored), available_memory()
    if free is None or needed <= max(free, _LITTLE):
        return
    raise NotEnoughMemory(
        "explaining it does not fit in memory",
        where="the float model",
        got=f"{_gigabytes(needed)} for an account of {_gigabytes(stored)} of weights",
        expected=f"at most the {_gigabytes(free)} that are free",
        todo="end other programs, or leave the weights out: --quantized-only",
    )


def check_batch(recorded: int, samples: int) -> None:
    """Raise NotEnoughMemory when a batch can't fit.

    recorded   bytes of the errors that one sample records
    samples    how many run at once
    """
    free = available_memory()
    if free is None or _BATCH * recorded * samples <= max(free, _LITTLE):
        return
    fitting = free // (_BATCH * max(1, recorded))
    raise NotEnoughMemory(
        "the samples that run at once do not fit in memory",
        where="the batch" if samples > 1 else "one sample",
        got=f"{_gigabytes(_BATCH * recorded * samples)} for {samples}",
        expected=f"at most the {_gigabytes(free)} that are free",
        todo=f"try --batch-size {max(1, fitting // 2)}"
        if fitting
        else "give shorter samples, or end other programs",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
