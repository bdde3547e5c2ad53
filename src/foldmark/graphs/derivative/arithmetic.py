"""Functions of several tensors with broadcasting; each gradient is summed to its own shape."""

from foldmark.graphs.derivative.tape import Gradients, Step

__all__ = ["RULES"]


def _back(at: Step, slot: int, gradient: str) -> str:
    """Sum a gradient of the output's shape to the shape of an input."""
    return at.tape.sum_to(gradient, at.output_shape(), at.shape(slot))


def _scaled_back(at: Step, slot: int, factor: float) -> str:
    return at.scale(_back(at, slot, at.gradient), factor)


def _sum(at: Step) -> Gradients:
    """d(a + b + ...) = g for each."""
    return {i: _back(at, i, at.gradient) for i in range(len(at.node.input)) if at.wants(i)}


def _mean(at: Step) -> Gradients:
    count = len(at.node.input)
    return {i: _scaled_back(at, i, 1 / count) for i in range(count) if at.wants(i)}


def _subtract(at: Step) -> Gradients:
    gradients = {}
    if at.wants(0):
        gradients[0] = _back(at, 0, at.gradient)
    if at.wants(1):
        gradients[1] = at.negate(_back(at, 1, at.gradient))
    return gradients


def _multiply(at: Step) -> Gradients:
    """d(a b) = g b, g a."""
    return {
        slot: _back(at, slot, at.tape.multiply(at.gradient, at.input(1 - slot)))
        for slot in (0, 1)
        if at.wants(slot)
    }


def _divide(at: Step) -> Gradients:
    """d(a / b) = g / b, -g y / b with y = a / b."""
    quotient = at.tape.divide(at.gradient, at.input(1))
    gradients = {}
    if at.wants(0):
        gradients[0] = _back(at, 0, quotient)
    if at.wants(1):
        product = at.tape.multiply(quotient, at.output())
        gradients[1] = at.negate(_back(at, 1, product))
    return gradients


def _power(at: Step) -> Gradients:
    """d(x^p) = g p x^(p-1), g x^p log(x); zero where either is infinite or undefined."""
    gradients = {}
    if at.wants(0):
        gradients[0] = _back(at, 0, _power_of_base(at))
    if at.wants(1):
        gradients[1] = _back(at, 1, _power_of_exponent(at))
    return gradients


def _power_of_base(at: Step) -> str:
    tape, x = at.tape, at.input()
    exponent = at.fact(at.input(1)).value
    if exponent is not None and exponent.size == 1:
        p = float(exponent.reshape(()))
        if p == 2:
            return tape.multiply(at.scale(at.gradient, 2), x)
        if p == 3:
            return tape.multiply(at.scale(at.gradient, 3), tape.multiply(x, x))
        raised = tape.emit("Pow", x, at.number(p - 1))
        slope = tape.multiply(at.scale(at.gradient, p), raised)
        if p >= 1:
            return slope
    else:
        power = at.input(1)
        if at.fact(power).dtype != at.dtype:
            power = tape.emit("CastLike", power, x)
        raised = tape.emit("Pow", x, tape.subtract(power, at.number(1)))
        slope = tape.multiply(tape.multiply(at.gradient, power), raised)
    at_zero = tape.emit("Equal", x, at.number(0))
    return tape.emit("Where", at_zero, at.number(0), slope)


def _power_of_exponent(at: Step) -> str:
    tape, x = at.tape, at.input()
    positive = tape.emit("Greater", x, at.number(0))
    log = tape.emit("Log", tape.emit("Where", positive, x, at.number(1)))
    return tape.multiply(at.gradient, tape.multiply(at.output(), log))


def _extreme(at: Step) -> Gradients:
    """The gradient of Min and Max goes to the inputs that equal the output, in equal shares."""
    tape, count = at.tape, len(at.node.input)
    hits = [
        tape.emit("CastLike", tape.emit("Equal", at.input(i), at.output()), at.output())
        for i in range(count)
    ]
    share = at.gradient if count == 1 else tape.divide(at.gradient, tape.emit("Sum", *hits))
    return {i: _back(at, i, tape.multiply(share, hits[i])) for i in range(count) if at.wants(i)}


def _where(at: Step) -> Gradients:
    gradients = {}
    if at.wants(1):
        taken = at.tape.emit("Where", at.input(0), at.gradient, at.number(0))
        gradients[1] = _back(at, 1, taken)
    if at.wants(2):
        taken = at.tape.emit("Where", at.input(0), at.number(0), at.gradient)
        gradients[2] = _back(at, 2, taken)
    return gradients


def _parametric_relu(at: Step) -> Gradients:
    """d prelu(x, a) = g (x > 0), g a (x <= 0); da = g x (x <= 0)."""
    tape, gradients = at.tape, {}
    positive = tape.emit("Greater", at.input(), at.number(0))
    if at.wants(0):
        below = tape.multiply(at.gradient, at.input(1))
        gradients[0] = tape.emit("Where", positive, at.gradient, below)
    if at.wants(1):
        product = tape.multiply(at.gradient, at.input())
        gradients[1] = _back(at, 1, tape.emit("Where", positive, at.number(0), product))
    return gradients


def _remainder(at: Step) -> Gradients:
    """d mod(a, b) = g, -g (a - y) / b."""
    gradients = {}
    if at.wants(0):
        gradients[0] = _back(at, 0, at.gradient)
    if at.wants(1):
        tape = at.tape
        whole = tape.divide(tape.subtract(at.input(), at.output()), at.input(1))
        gradients[1] = at.negate(_back(at, 1, tape.multiply(at.gradient, whole)))
    return gradients


RULES = {
    "Add": _sum,
    "Div": _divide,
    "Max": _extreme,
    "Mean": _mean,
    "Min": _extreme,
    "Mod": _remainder,
    "Mul": _multiply,
    "PRelu": _parametric_relu,
    "Pow": _power,
    "Sub": _subtract,
    "Sum": _sum,
    "Where": _where,
}
