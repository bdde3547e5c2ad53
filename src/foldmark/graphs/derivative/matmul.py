"""Products of matrices: MatMul, Gemm, FusedMatMul, Einsum."""

import math
from collections.abc import Sequence
from string import ascii_letters

from foldmark.graphs.derivative.tape import Gradients, Step, Tape

__all__ = ["RULES"]


def _swap_last(tape: Tape, value: str, rank: int) -> str:
    """Append the transposition of the last two axes."""
    return tape.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


def _matmul(at: Step) -> Gradients:
    """Y = A B: dA = G B^T, dB = A^T G, summed over broadcast axes."""
    left, right = at.shape(0), at.shape(1)
    if len(right) == 2 and len(left) >= 2:
        return _matmul_by_matrix(at, left, right)
    # A vector is a row on the left and a column on the right.
    left = (1, *left) if len(left) == 1 else left
    right = (*right, 1) if len(right) == 1 else right
    batch = at.output_shape()
    batch = batch[: len(batch) - (len(at.shape(0)) > 1) - (len(at.shape(1)) > 1)]
    result = (*batch, left[-2], right[-1])
    tape = at.tape
    g = tape.reshape(at.gradient, result) if result != at.output_shape() else at.gradient
    gradients = {}
    if at.wants(0):
        b = at.input(1) if right == at.shape(1) else tape.reshape(at.input(1), right)
        full = tape.emit("MatMul", g, _swap_last(tape, b, len(right)))
        gradients[0] = _back(at, 0, full, (*batch, *left[-2:]), left)
    if at.wants(1):
        a = at.input(0) if left == at.shape(0) else tape.reshape(at.input(0), left)
        full = tape.emit("MatMul", _swap_last(tape, a, len(left)), g)
        gradients[1] = _back(at, 1, full, (*batch, *right[-2:]), right)
    return gradients


def _back(at: Step, slot: int, full: str, got: Sequence[int], want: Sequence[int]) -> str:
    """Sum over broadcast axes, then take away the axis that a vector was given."""
    summed = at.tape.sum_to(full, got, want)
    return summed if tuple(want) == at.shape(slot) else at.tape.reshape(summed, at.shape(slot))


def _matmul_by_matrix(at: Step, left: tuple[int, ...], right: tuple[int, ...]) -> Gradients:
    """Y = A B with one matrix B for all rows: one Gemm each, without transposing anything."""
    tape, (inner, outer) = at.tape, right
    rows = math.prod(left[:-1])
    g = at.gradient if len(left) == 2 else tape.reshape(at.gradient, (rows, outer))
    gradients = {}
    if at.wants(0):
        flat = tape.emit("Gemm", g, at.input(1), transB=1)
        gradients[0] = flat if len(left) == 2 else tape.reshape(flat, left)
    if at.wants(1):
        a = at.input(0) if len(left) == 2 else tape.reshape(at.input(0), (rows, inner))
        gradients[1] = tape.emit("Gemm", a, g, transA=1)
    return gradients


def _gemm(at: Step) -> Gradients:
    """Y = alpha A' B' + beta C, where ' is an optional transposition."""
    tape, g = at.tape, at.gradient
    a, b = at.input(0), at.input(1)
    flip_a, flip_b = at.integer("transA", 0), at.integer("transB", 0)
    alpha, beta = at.real("alpha", 1.0), at.real("beta", 1.0)
    gradients = {}
    if at.wants(0):
        if flip_a:
            gradients[0] = tape.emit("Gemm", b, g, alpha=alpha, transA=flip_b, transB=1)
        else:
            gradients[0] = tape.emit("Gemm", g, b, alpha=alpha, transB=1 - flip_b)
    if at.wants(1):
        if flip_b:
            gradients[1] = tape.emit("Gemm", g, a, alpha=alpha, transA=1, transB=flip_a)
        else:
            gradients[1] = tape.emit("Gemm", a, g, alpha=alpha, transA=1 - flip_a)
    if at.wants(2):
        gradients[2] = at.scale(tape.sum_to(g, at.output_shape(), at.shape(2)), beta)
    return gradients


def _fused_matmul(at: Step) -> Gradients:
    """Y = alpha A' B', ' swapping the last two axes (ONNX Runtime's own operator)."""
    if at.integer("transBatchA", 0) or at.integer("transBatchB", 0):
        raise at.refused("batch axes are transposed inside it")
    tape, g, batch = at.tape, at.gradient, at.output_shape()[:-2]
    flips = [at.integer("transA", 0), at.integer("transB", 0)]
    shapes = [at.shape(0), at.shape(1)]
    if min(len(s) for s in shapes) < 2:
        raise at.refused("an operand is a vector")
    straight = [
        _swap_last(tape, at.input(i), len(shapes[i])) if flips[i] else at.input(i) for i in (0, 1)
    ]
    gradients = {}
    for slot in (0, 1):
        if not at.wants(slot):
            continue
        other = _swap_last(tape, straight[1 - slot], len(shapes[1 - slot]))
        full = tape.emit("MatMul", *((g, other) if slot == 0 else (other, g)))
        rank = len(batch) + 2
        full = _swap_last(tape, full, rank) if flips[slot] else full
        full = tape.sum_to(full, (*batch, *shapes[slot][-2:]), shapes[slot])
        gradients[slot] = at.scale(full, at.real("alpha", 1.0))
    return gradients


def _einsum(at: Step) -> Gradients:
    """Each operand's gradient is an Einsum of the output's gradient with the other operands."""
    terms, result = _einsum_terms(at)
    return {
        slot: _einsum_operand(at, slot, terms, result)
        for slot in range(len(terms))
        if at.wants(slot)
    }


def _einsum_terms(at: Step) -> tuple[list[str], str]:
    """Return the operands' and the result's indices, with every index a letter."""
    equation = at.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    spare = [c for c in ascii_letters if c not in equation]
    shapes = [at.shape(i) for i in range(len(terms))]
    hidden = [len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes, strict=True)]
    widest = max((h for h, t in zip(hidden, terms, strict=True) if "..." in t), default=0)
    dots = "".join(spare[:widest])
    letters = [
        t.replace("...", dots[widest - h :]) if "..." in t else t
        for t, h in zip(terms, hidden, strict=True)
    ]
    if arrow:
        return letters, right.replace("...", dots)
    plain = left.replace(",", "").replace("...", "")
    return letters, dots + "".join(sorted(c for c in set(plain) if plain.count(c) == 1))


def _einsum_operand(at: Step, slot: int, terms: list[str], result: str) -> str:
    tape, term, shape = at.tape, terms[slot], at.shape(slot)
    if len(set(term)) != len(term):
        raise at.refused("an operand's index is repeated (a diagonal)")
    others = [t for i, t in enumerate(terms) if i != slot]
    names = [at.input(i) for i in range(len(terms)) if i != slot]
    sizes: dict[str, int] = {}
    for t, i in zip(terms, range(len(terms)), strict=True):
        for c, n in zip(t, at.shape(i), strict=True):
            sizes[c] = max(sizes.get(c, 1), n)
    reached = [c for c in term if any(c in t for t in (result, *others))]
    equation = ",".join([result, *others]) + "->" + "".join(reached)
    full = tape.emit("Einsum", at.gradient, *names, equation=equation)
    # An index of this operand alone was summed away: its gradient is the same all along it.
    aligned = [sizes[c] if c in reached else 1 for c in term]
    if aligned != [sizes[c] for c in reached]:
        full = tape.reshape(full, aligned)
    full = tape.sum_to(full, aligned, [min(n, a) for n, a in zip(shape, aligned, strict=True)])
    if any(c not in reached for c in term):
        full = tape.emit("Expand", full, tape.integers(shape))
    return full


RULES = {
    "Einsum": _einsum,
    "FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
