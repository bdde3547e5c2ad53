"""Numbers drawn to be telling: ties, signed zeros, one-sided ranges, denormals, empty lists."""

from random import Random

__all__ = [
    "gaussian",
    "lists",
    "matrices",
    "near_tie",
    "power_of_two",
    "ties",
]


def power_of_two(random: Random) -> float:
    """Draw a scale whose half-steps are exact: 2^-6 to 2^3."""
    return 2.0 ** random.randint(-6, 3)


def gaussian(random: Random, count: int, width: float = 1.0) -> list[float]:
    """Draw bell-shaped numbers of the given width, with six decimals."""
    return [round(random.gauss(0.0, 1.0), 6) * width for _ in range(count)]


def ties(random: Random, count: int, scale: float, reach: int = 130) -> list[float]:
    """Draw numbers that lie exactly between two codes, both signs, some beyond the codes."""
    return [(random.randint(-reach, reach) + 0.5) * scale for _ in range(count)]


def near_tie(random: Random, reach: int) -> tuple[float, float]:
    """Draw (x, scale) at which x / scale and x * (1 / scale) round to different integers."""
    for _ in range(2000):
        scale = random.uniform(0.001, 1.0)
        x = (random.randint(-reach, reach) + 0.5) * scale
        if round(x / scale) != round(x * (1.0 / scale)):
            return x, scale
    return 0.5, 1.0


def lists(random: Random) -> list[list[float]]:
    """Draw lists of reals: the special ones always, and a handful of ordinary ones."""
    equal = round(random.uniform(-5, 5), 3)
    width = 10.0 ** random.randint(-3, 3)
    tiny = [random.choice((-1, 1)) * random.randint(1, 4000) * 5e-324 for _ in range(4)]
    found: list[list[float]] = [
        [],
        [0.0],
        [-0.0],
        [0.0, -0.0, 0.0],
        [round(random.uniform(0.1, 9.0), 3)],
        [-round(random.uniform(0.1, 9.0), 3)],
        [equal] * random.randint(2, 5),
        [abs(x) + 0.25 for x in gaussian(random, 6)],
        [-abs(x) - 0.25 for x in gaussian(random, 6)],
        [*gaussian(random, 5), 0.0, -0.0],
        tiny,
        [5e-324],
        [*gaussian(random, 6, 0.01), random.choice((-1, 1)) * random.uniform(40, 90)],
        [float(random.randint(-127, 127)) for _ in range(7)] + [127.0],
        [x for x in ties(random, 8, 1.0, 126) if abs(x) < 127] + [-127.0],
        [x * 0.25 for x in ties(random, 8, 1.0, 126) if abs(x) < 127] + [31.75],
    ]
    found += [gaussian(random, random.randint(2, 12), width) for _ in range(8)]
    return found


def _wide_rows(random: Random, rows: int, columns: int) -> list[list[float]]:
    """Draw a matrix whose rows differ in width by up to five powers of ten."""
    return [gaussian(random, columns, 10.0 ** random.randint(-3, 2)) for _ in range(rows)]


def matrices(random: Random) -> list[list[list[float]]]:
    """Draw matrices: empty, one row, one column, rows of zeros, and rows of unlike widths."""
    rows, columns = random.randint(2, 5), random.randint(2, 5)
    zero_row = _wide_rows(random, 3, columns)
    zero_row[random.randrange(3)] = [0.0] * columns
    found: list[list[list[float]]] = [
        [],
        [[0.0]],
        [[0.0, -0.0], [0.0, 0.0]],
        [gaussian(random, columns)],
        [[x] for x in gaussian(random, rows)],
        zero_row,
        [[random.randint(-126, 125) + 0.5, 127.0] for _ in range(rows)],
        [[127.0, 0.5], [12.7, 0.25], [1.27, -0.015]],
    ]
    found += [_wide_rows(random, random.randint(2, 5), random.randint(2, 5)) for _ in range(8)]
    square = random.randint(2, 4)
    found += [_wide_rows(random, square, square) for _ in range(3)]
    return found
