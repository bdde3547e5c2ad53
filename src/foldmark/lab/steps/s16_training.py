"""Step 16: fake quantization and the straight-through gradient, on one neuron."""

from collections.abc import Iterator
from functools import partial
from random import Random

from foldmark.exact.affine import fake_quantize_value
from foldmark.exact.catalog import FLOAT64
from foldmark.exact.straight_through import straight_through as exact_gradient
from foldmark.lab import rules
from foldmark.lab.draws import gaussian, power_of_two
from foldmark.lab.exercise import (
    Arguments,
    Function,
    Mistake,
    Number,
    Parameter,
    Place,
    Sentence,
    Step,
)
from foldmark.lab.steps.s04_ruler import CLOSE
from foldmark.lab.steps.work import code_work

_REAL = Number("float", -1e6, 1e6)
_SCALE = Number("float", 1e-4, 1e4)


def fake_quantize(x: float, scale: float) -> float:
    """Return x folded to a code -127..127 and unfolded again."""
    return fake_quantize_value(x, scale, 0, rules.SYMMETRIC.affine, FLOAT64)


def straight_through(x: float, scale: float, upstream: float) -> float:
    """Return upstream where x's code is not clipped, else 0."""
    return exact_gradient(x, scale, upstream, rules.NARROW)


def train_neuron(
    weights: list[float], inputs: list[float], target: float, scale: float, rate: float
) -> list[float]:
    """Return the weights after one step of gradient descent on (y - target)^2."""
    output = sum(fake_quantize(w, scale) * x for w, x in zip(weights, inputs, strict=True))
    slope = 2 * (output - target)
    return [
        w - rate * straight_through(w, scale, slope * x)
        for w, x in zip(weights, inputs, strict=True)
    ]


def _points(random: Random) -> Iterator[Arguments]:
    yield (0.0, 1.0)
    yield (-0.0, 0.5)
    yield (1e6, 0.5)
    yield (-1e6, 0.5)
    for _ in range(10):
        scale = power_of_two(random)
        yield ((random.randint(-126, 125) + 0.5) * scale, scale)
    for _ in range(8):
        yield (random.gauss(0, 60), random.uniform(0.1, 1.0))


def _gradients(random: Random) -> Iterator[Arguments]:
    # 127.5 rounds to 128 and is clipped; 127.25 rounds to 127 and is not.
    for code in (127.0, 127.25, 127.5, 128.0, -127.0, -127.25, -127.5, -128.0):
        yield (code * 0.5, 0.5, random.choice((-3.0, 0.25, 2.0)))
    yield (0.0, 1.0, 0.0)
    for _ in range(10):
        yield (round(random.gauss(0, 100), 3), random.choice((0.5, 1.0)), random.gauss(0, 1))


def _neurons(random: Random) -> Iterator[Arguments]:
    yield ([], [], 1.0, 0.5, 0.1)
    yield ([0.3], [1.0], 1.0, 0.25, 0.1)
    yield ([200.0, 1.0], [1.0, 2.0], 0.0, 1.0, 0.01)
    for _ in range(16):
        count = random.randint(1, 5)
        scale = random.choice((0.01, 0.05, 0.25))
        weights = gaussian(random, count)
        if random.random() < 0.6:
            weights[random.randrange(count)] = random.choice((-1, 1)) * scale * 150
        target = round(random.gauss(0, 2), 3)
        yield (weights, gaussian(random, count), target, scale, random.choice((0.01, 0.1)))


def _no_clip(x: float, scale: float) -> float:
    return round(x / scale) * scale


def _inclusive(x: float, scale: float, upstream: float) -> float:
    return upstream if abs(x / scale) <= 127 else 0.0


def _loose(x: float, scale: float, upstream: float) -> float:
    return upstream if abs(x / scale) <= 127.5 else 0.0


def _trained(
    weights: list[float],
    inputs: list[float],
    target: float,
    scale: float,
    rate: float,
    *,
    factor: float = 2.0,
    folded: bool = True,
    wall: bool = True,
    base_folded: bool = False,
) -> list[float]:
    """Take the training step with one part changed."""
    used = [fake_quantize(w, scale) if folded else w for w in weights]
    slope = factor * (sum(w * x for w, x in zip(used, inputs, strict=True)) - target)
    steps = [
        straight_through(w, scale, slope * x) if wall else slope * x
        for w, x in zip(weights, inputs, strict=True)
    ]
    base = used if base_folded else weights
    return [w - rate * step for w, step in zip(base, steps, strict=True)]


def _fake_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    x, scale = arguments
    code = rules.codes_of([x], scale)[0]
    lines = code_work(x, scale, None, rules.NARROW)
    return (*lines, Sentence("unfold", {"code": code, "scale": scale, "value": code * scale}))


def _gradient_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    x, scale, upstream = arguments
    result = straight_through(x, scale, upstream)
    rounded = round(x / scale)
    return (Sentence("gradient", {"quotient": x / scale, "code": rounded, "result": result}),)


def _train_work(arguments: Arguments, _: Place) -> tuple[Sentence, ...]:
    weights, inputs, target, scale, _rate = arguments
    used = [fake_quantize(w, scale) for w in weights]
    output = sum(w * x for w, x in zip(used, inputs, strict=True))
    slope = 2 * (output - target)
    gradient = [straight_through(w, scale, slope * x) for w, x in zip(weights, inputs, strict=True)]
    fields = {"used": used, "output": output, "slope": slope, "gradient": gradient}
    return (Sentence("training", fields),)


_X = Parameter("x", _REAL)
_STEP_SIZE = Parameter("scale", _SCALE)

STEP = Step(
    16,
    "training",
    (
        Function(
            fake_quantize,
            (_X, _STEP_SIZE),
            "float",
            _points,
            mistakes=(
                Mistake("no_clip", _no_clip),
                Mistake("code_for_value", lambda x, s: float(rules.codes_of([x], s)[0])),
                Mistake("not_folded", lambda x, s: max(-127 * s, min(127 * s, x))),
            ),
            work=_fake_work,
        ),
        Function(
            straight_through,
            (_X, _STEP_SIZE, Parameter("upstream", _REAL)),
            "float",
            _gradients,
            mistakes=(
                Mistake("gradient_of_rounding", lambda x, s, upstream: 0.0),
                Mistake("wall_forgotten", lambda x, s, upstream: upstream),
                Mistake("wall_before_rounding", _inclusive),
                Mistake("wall_at_half", _loose),
            ),
            work=_gradient_work,
        ),
        Function(
            train_neuron,
            (
                Parameter("weights", _REAL, ("n",)),
                Parameter("inputs", _REAL, ("n",)),
                Parameter("target", _REAL),
                _STEP_SIZE,
                Parameter("rate", Number("float", 1e-4, 1.0)),
            ),
            "list[float]",
            _neurons,
            tolerance=CLOSE,
            mistakes=(
                Mistake("factor_two", partial(_trained, factor=1.0)),
                Mistake("forward_not_folded", partial(_trained, folded=False)),
                Mistake("wall_forgotten", partial(_trained, wall=False)),
                Mistake("update_on_folded", partial(_trained, base_folded=True)),
                Mistake("uphill", partial(_trained, factor=-2.0)),
            ),
            work=_train_work,
        ),
    ),
)
