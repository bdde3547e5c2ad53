"""Wrong modules: the plain solution with one thing changed, and modules that try to cheat.

Each names the step and the function at which the grader has to stop it, and, where there is a
name for the mistake, the one that it has to say.
"""

from dataclasses import dataclass

from tests.lab.solutions import PLAIN


@dataclass(frozen=True)
class Mutant:
    """One wrong module: `old` replaced by `new` in the plain solution (all of it when empty)."""

    step: int
    function: str
    old: str
    new: str
    mistake: str = ""

    @property
    def source(self) -> str:
        """The whole module."""
        if not self.old:
            return f"{PLAIN}\n\n{self.new}\n"
        body = self._body()
        assert body.count(self.old) >= 1, (self.function, self.old)
        return PLAIN.replace(body, body.replace(self.old, self.new, 1), 1)

    def _body(self) -> str:
        start = PLAIN.index(f"def {self.function}(")
        end = PLAIN.find("\n\n\ndef ", start)
        return PLAIN[start : end if end > 0 else len(PLAIN)]

    def __str__(self) -> str:
        """A readable name for the test."""
        return f"{self.step}-{self.function}-{' '.join(self.new.split())[:40]}"


SUBTLE = [
    Mutant(1, "round_half_even", "below % 2 == 0", "below % 2 == 1"),
    Mutant(
        1,
        "round_half_even",
        "return below if below % 2 == 0 else below + 1",
        "return below + 1",
        "half_up",
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        "def round_half_even(x):\n    return math.floor(x + 0.5)",
        "half_up_added",
    ),
    Mutant(1, "round_half_even", "", "def round_half_even(x):\n    return int(x)", "truncation"),
    Mutant(1, "round_half_even", "", "def round_half_even(x):\n    return float(round(x))"),
    Mutant(1, "round_half_even", "", "def round_half_even(x):\n    return round(x + 1e-12)"),
    Mutant(
        1,
        "round_half_even",
        "",
        "def round_half_even(x):\n    return int(f'{x:.0f}') if abs(x) < 1e6 else int(x)",
    ),
    Mutant(1, "round_half_away", ">= 0.5", "> 0.5"),
    Mutant(
        1,
        "round_half_away",
        "",
        "def round_half_away(x):\n    return int(x + 0.5) if x >= 0 else int(x - 0.5)",
        "half_away_added",
    ),
    Mutant(1, "round_half_away", "", "def round_half_away(x):\n    return round(x)", "half_even"),
    Mutant(1, "round_half_away", "return below if x >= 0 else -below", "return below"),
    Mutant(
        1,
        "parting_points",
        "",
        "def parting_points(values):\n    return [x for x in values if x % 1 == 0.5]",
        "every_tie",
    ),
    Mutant(
        1,
        "parting_points",
        "",
        "def parting_points(values):\n    return sorted({x for x in values if round_half_even(x) != round_half_away(x)})",
    ),
    Mutant(1, "mean_shift", ">= 0.5", "> 0.5"),
    Mutant(1, "mean_shift", "return moved / len(values)", "return moved", "sum_for_mean"),
    Mutant(1, "mean_shift", "if not values:\n        return 0.0\n    ", ""),
    Mutant(2, "symmetric_scale", "/ 127", "/ 128", "scale_128"),
    Mutant(2, "symmetric_scale", "/ 127", "/ 127.5", "scale_127_5"),
    Mutant(2, "symmetric_scale", "abs(x)", "x", "maximum_without_magnitude"),
    Mutant(2, "symmetric_scale", "scale if scale > 0 else 1.0", "scale", "scale_of_nothing"),
    Mutant(2, "symmetric_scale", "scale if scale > 0 else 1.0", "max(scale, 1e-12)"),
    Mutant(2, "symmetric_scale", "largest / 127", "largest * (1 / 127)", "scale_reciprocal"),
    Mutant(2, "quantize_symmetric", "max(-127,", "max(-128,", "lowest_128"),
    Mutant(
        2,
        "quantize_symmetric",
        "max(-127, min(127, round_half_even(x / scale)))",
        "round_half_even(x / scale)",
        "no_clip",
    ),
    Mutant(
        2,
        "quantize_symmetric",
        "round_half_even(x / scale)",
        "round_half_away(x / scale)",
        "half_away",
    ),
    Mutant(2, "quantize_symmetric", "round_half_even(x / scale)", "int(x / scale)", "truncation"),
    Mutant(2, "quantize_symmetric", "round_half_even(x / scale)", "x // scale"),
    Mutant(2, "quantize_symmetric", "x / scale", "x * (1 / scale)", "reciprocal"),
    Mutant(
        2,
        "quantize_symmetric",
        "",
        "def quantize_symmetric(values, scale, seen=[]):\n    seen += [max(-127, min(127, round(x / scale))) for x in values]\n    return list(seen)",
    ),
    Mutant(
        2,
        "quantize_symmetric",
        "",
        "def quantize_symmetric(values, scale):\n    for i, x in enumerate(values):\n        values[i] = max(-127, min(127, round(x / scale)))\n    return values",
    ),
    Mutant(2, "dequantize_symmetric", "code * scale", "code / scale", "divided"),
    Mutant(2, "dequantize_symmetric", "code * scale", "round(code * scale, 9)"),
    Mutant(3, "affine_parameters", "/ 255", "/ 256", "steps_256"),
    Mutant(3, "affine_parameters", "min(values + [0.0])", "min(values or [0.0])"),
    Mutant(
        3,
        "affine_parameters",
        "max(0, min(255, round_half_even(-low / scale)))",
        "-low / scale",
        "zero_point_not_rounded",
    ),
    Mutant(
        3, "affine_parameters", "round_half_even(-low / scale)", "int(-low / scale)", "truncation"
    ),
    Mutant(
        3,
        "affine_parameters",
        "round_half_even(-low / scale)",
        "math.floor(-low / scale + 0.5)",
        "half_up",
    ),
    Mutant(3, "affine_parameters", "return 1.0, 0", "return 1.0, 128"),
    Mutant(
        3,
        "quantize_affine",
        "round_half_even(x / scale) + zero_point",
        "round_half_even(x / scale + zero_point)",
        "zero_point_before_rounding",
    ),
    Mutant(
        3,
        "quantize_affine",
        "max(0, min(255, round_half_even(x / scale) + zero_point))",
        "max(0, min(255, round_half_even(x / scale))) + zero_point",
        "clip_before_zero_point",
    ),
    Mutant(
        3,
        "quantize_affine",
        "max(0, min(255, round_half_even(x / scale) + zero_point))",
        "(round_half_even(x / scale) + zero_point) % 256",
    ),
    Mutant(
        3,
        "quantize_affine",
        "max(0, min(255, round_half_even(x / scale) + zero_point))",
        "round_half_even(x / scale) + zero_point",
        "no_clip",
    ),
    Mutant(
        3,
        "dequantize_affine",
        "(code - zero_point) * scale",
        "code * scale - zero_point * scale",
        "distributed",
    ),
    Mutant(
        3,
        "dequantize_affine",
        "(code - zero_point) * scale",
        "code * scale",
        "zero_point_forgotten",
    ),
    Mutant(4, "largest_error", "abs(x - y)", "x - y", "no_magnitude"),
    Mutant(4, "mean_error", "/ len(values)", "/ (len(values) + 1)"),
    Mutant(4, "mean_error", "abs(x - y)", "(x - y) ** 2", "squared"),
    Mutant(4, "relative_error", "math.sqrt(noise / size)", "noise / size", "root_of_ratio"),
    Mutant(4, "relative_error", "x**2 for x in values", "y**2 for y in restored", "over_restored"),
    Mutant(4, "error_in_steps", " / scale", "", "not_in_steps"),
    Mutant(5, "codes_used", "len(set(codes))", "len(codes)", "length_for_count"),
    Mutant(5, "codes_used", "set(codes)", "{abs(code) for code in codes}", "sign_dropped"),
    Mutant(
        5,
        "codes_kept",
        "quantize_symmetric(values, scale)",
        "quantize_symmetric(values + [outlier], scale)",
        "outlier_counted",
    ),
    Mutant(
        5,
        "codes_kept",
        "symmetric_scale(values + [outlier])",
        "symmetric_scale(values)",
        "outlier_not_in_scale",
    ),
    Mutant(
        6,
        "quantize_per_row",
        "",
        "def quantize_per_row(matrix):\n    columns = [list(c) for c in zip(*matrix)]\n    scales = [symmetric_scale(c) for c in columns]\n    folded = [quantize_symmetric(c, s) for c, s in zip(columns, scales)]\n    return [list(r) for r in zip(*folded)] or [[] for _ in matrix], scales",
        "column_for_row",
    ),
    Mutant(
        6,
        "quantize_per_tensor",
        "[x for row in matrix for x in row]",
        "[x for row in matrix[:1] for x in row]",
    ),
    Mutant(6, "smallest_row_errors", "width > 0 and", ""),
    Mutant(6, "smallest_row_errors", "width <", "width >", "largest_row"),
    Mutant(
        7,
        "folded_dot",
        "return total * (scale_a * scale_b)",
        "return total * scale_a * scale_b",
        "scales_one_at_a_time",
    ),
    Mutant(
        7,
        "folded_dot",
        "",
        "def folded_dot(a, b):\n    x = fold_and_unfold(a, symmetric_scale(a))\n    y = fold_and_unfold(b, symmetric_scale(b))\n    return float(sum(p * q for p, q in zip(x, y)))",
        "dequantized_before_accumulating",
    ),
    Mutant(7, "integer_dot", "total += x * y", "total += abs(x * y)", "no_sign"),
    Mutant(7, "first_overflow", "total > 2147483647", "total >= 2147483647"),
    Mutant(7, "first_overflow", "total < -2147483648", "total < -2147483647"),
    Mutant(7, "first_overflow", " or total < -2147483648", "", "low_side_forgotten"),
    Mutant(7, "first_overflow", "return index", "return index + 1", "counted_from_one"),
    Mutant(8, "softmax", "math.exp(s - largest)", "math.exp(s)", "softmax_without_maximum"),
    Mutant(8, "softmax", "math.exp(s - largest)", "2 ** (s - largest)", "base_two"),
    Mutant(
        8,
        "softmax_errors",
        "relative_error(scores, restored), relative_error(softmax(scores), softmax(restored))",
        "relative_error(softmax(scores), softmax(restored)), relative_error(scores, restored)",
        "swapped",
    ),
    Mutant(9, "attention", "math.sqrt(len(query))", "len(query)", "width_for_root"),
    Mutant(9, "attention", "math.sqrt(len(query))", "math.sqrt(len(keys))", "root_of_tokens"),
    Mutant(
        9, "key_errors", "fold_and_unfold(row, symmetric_scale(row))", "fold_and_unfold(row, one)"
    ),
    Mutant(10, "percentile_limit", "+ 99) // 100", ") // 100"),
    Mutant(10, "percentile_limit", "[rank - 1]", "[min(rank, len(values) - 1)]", "rank_off_by_one"),
    Mutant(10, "percentile_limit", "abs(x) for", "x for", "maximum_without_magnitude"),
    Mutant(10, "clip_errors", "limit / 127", "limit / 128"),
    Mutant(10, "clip_errors", "return clipped, rounded", "return rounded, clipped", "swapped"),
    Mutant(10, "best_limit", "total < least", "total <= least"),
    Mutant(10, "clipped_share", "abs(x) > limit", "abs(x) >= limit", "limit_counted"),
    Mutant(11, "quantize_blocks", "/ 7", "/ 8", "scale_8"),
    Mutant(
        11,
        "quantize_blocks",
        "for start in range(0, len(values), block_size)",
        "for start in range(0, len(values) - block_size + 1, block_size)",
        "last_block_dropped",
    ),
    Mutant(11, "pack_nibbles", "high * 16 + low", "low * 16 + high", "high_half_first"),
    Mutant(
        11,
        "bits_per_value",
        "(count + block_size - 1) // block_size",
        "count / block_size",
        "part_of_a_scale",
    ),
    Mutant(12, "fixed_multiplier", "math.floor(mantissa * 2**31 + 0.5)", "round(mantissa * 2**31)"),
    Mutant(
        12,
        "fixed_multiplier",
        "    if multiplier == 2**31:\n        multiplier //= 2\n        shift -= 1\n",
        "",
        "multiplier_2_31",
    ),
    Mutant(
        12,
        "requantize",
        "(accumulator * multiplier + 2 ** (shift - 1)) >> shift",
        "accumulator * multiplier >> shift",
        "shift_without_rounding",
    ),
    Mutant(
        12,
        "requantize",
        "(accumulator * multiplier + 2 ** (shift - 1)) >> shift",
        "round(accumulator * multiplier / 2**shift)",
        "half_even",
    ),
    Mutant(
        13,
        "hessian",
        "    for i in range(size):\n        h[i][i] += extra\n",
        "",
        "damping_forgotten",
    ),
    Mutant(
        13,
        "gptq_row",
        "error = (left[j] - code * scale) / rest[j][j]",
        "error = left[j] - code * scale",
        "pivot_forgotten",
    ),
    Mutant(13, "gptq_row", "left[k] -= error", "left[k] += error", "update_sign"),
    Mutant(
        13,
        "gptq_row",
        "rest[a][b] -= rest[a][j] * rest[j][b] / rest[j][j]",
        "pass",
        "not_eliminated",
    ),
    Mutant(14, "smoothing_factors", "math.sqrt(wide / narrow)", "wide / narrow", "root_missing"),
    Mutant(14, "smooth", "w * s", "w", "one_way_only"),
    Mutant(
        15, "quantize_by_channel", "transpose(codes), scales", "codes, scales", "codes_transposed"
    ),
    Mutant(
        15,
        "cache_errors",
        "by_token(keys), by_channel(values)",
        "by_token(keys), by_token(values)",
        "both_by_token",
    ),
    Mutant(15, "cache_bytes", "(bits + 7) // 8", "bits // 8", "bytes_rounded_down"),
    Mutant(
        16,
        "fake_quantize",
        "quantize_symmetric([x], scale)[0]",
        "round_half_even(x / scale)",
        "no_clip",
    ),
    Mutant(
        16, "straight_through", "round_half_even(x / scale)", "x / scale", "wall_before_rounding"
    ),
    Mutant(16, "train_neuron", "slope = 2 *", "slope =", "factor_two"),
    Mutant(16, "train_neuron", "fake_quantize(w, scale) * x", "w * x", "forward_not_folded"),
]

_HUNT = """
import sys
def hunt():
    frame = sys._getframe()
    while frame:
        for place in (frame.f_locals, frame.f_globals):
            for key, value in list(place.items()):
                if "expected" in str(key) or "answer" in str(key).lower():
                    yield value
        frame = frame.f_back
"""

CHEATS = [
    # Knows the examples of the text by heart.
    Mutant(
        2,
        "quantize_symmetric",
        "",
        "_KNOWN = {0.01: [31, -127, 64, 0, -50, 90, 0, -8]}\ndef quantize_symmetric(values, scale):\n    return _KNOWN.get(scale, [0] * len(values))",
    ),
    # Knows the answers to one seed's inputs by heart, and nothing else.
    Mutant(
        1,
        "round_half_even",
        "",
        "def round_half_even(x):\n    return {0.5: 0, 1.5: 2, 2.5: 2, 3.5: 4, -0.5: 0}.get(x, 0)",
    ),
    # Looks for the right answers in the frames that called it.
    Mutant(
        1,
        "round_half_even",
        "",
        _HUNT
        + "def round_half_even(x):\n    for value in hunt():\n        if isinstance(value, int):\n            return value\n    return 0",
    ),
    # Reads the grader's memory.
    Mutant(
        1,
        "round_half_even",
        "",
        "import os\ndef round_half_even(x):\n    with open(f'/proc/{os.getppid()}/mem', 'rb') as memory:\n        return len(memory.read(1))",
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        "import os\ndef round_half_even(x):\n    return len(open(f'/proc/{os.getppid()}/cmdline').read())",
    ),
    # Imports the reference, by name, by path, or by reading its text.
    Mutant(
        1,
        "round_half_even",
        "",
        "def round_half_even(x):\n    from foldmark.lab.steps.s01_rounding import round_half_even as right\n    return right(x)",
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        "import sys\ndef round_half_even(x):\n    sys.path += ['src', '/usr/lib/python3/dist-packages']\n    import foldmark.exact\n    return 0",
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        "import importlib.util, sys\ndef round_half_even(x):\n    spec = importlib.util.spec_from_file_location('rounding', sys.executable.replace('bin/python', 'lib/python3.11/site-packages/foldmark/exact/rounding.py'))\n    module = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(module)\n    return 0",
    ),
    Mutant(1, "round_half_even", "", "import numpy\n"),
    # Asks another process.
    Mutant(
        1,
        "round_half_even",
        "",
        "import os\ndef round_half_even(x):\n    return int(os.popen(f'python -c \"print(round({x}))\"').read())",
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        "import os\ndef round_half_even(x):\n    if os.fork() == 0:\n        os._exit(0)\n    return round(x)",
    ),
    # Writes to the pipe itself, all answers at once.
    Mutant(
        1,
        "round_half_even",
        "",
        'import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b\'{"load": null}\\n\' + b\'{"value": 0, "changed": false}\\n\' * 500)\n    except OSError:\n        pass\n',
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        'import os\ndef round_half_even(x):\n    for fd in range(3, 20):\n        try:\n            os.write(fd, b\'{"value": 2, "passed": true}\\n\')\n        except OSError:\n            pass\n    return round(x)',
    ),
    # Patches what the other side of the pipe is written with.
    Mutant(
        1,
        "round_half_even",
        "",
        "import json\njson.loads = lambda *a, **k: [0.0]\ndef round_half_even(x):\n    return 0",
    ),
    Mutant(
        1,
        "round_half_even",
        "",
        "import builtins\nbuiltins.type = lambda *a: int\nbuiltins.isinstance = lambda *a: True\ndef round_half_even(x):\n    return 'right'",
    ),
    # Returns something that claims to equal everything.
    Mutant(
        1,
        "round_half_even",
        "",
        "class Any(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\ndef round_half_even(x):\n    return Any(0)",
    ),
    Mutant(
        2,
        "quantize_symmetric",
        "",
        "class Any(list):\n    __eq__ = lambda self, other: True\n    __len__ = lambda self: 10**6\ndef quantize_symmetric(values, scale):\n    return Any()",
    ),
    Mutant(4, "mean_error", "", "def mean_error(values, restored):\n    return float('nan')"),
    # Ends the grader, or tries to.
    Mutant(
        1,
        "round_half_even",
        "",
        "import os, signal\ndef round_half_even(x):\n    os.kill(os.getppid(), signal.SIGKILL)",
    ),
]

MUTANTS = [*SUBTLE, *CHEATS]
