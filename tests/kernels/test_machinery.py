"""What the kernels promise beside their numbers: no waiting, no copies, every core, any thread."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import foldmark as fm
from foldmark.errors import DataMismatch
from foldmark.exact.catalog import INT4, INT8, UINT4, UINT8
from foldmark.kernels.blocks import Layout
from foldmark.kernels.floats import first_non_finite
from foldmark.kernels.threads import each, thread_count
from foldmark.tensors.scheme import Scheme

FIRST_CALL = """
import json
import numpy as np
import foldmark as fm
from foldmark.exact.catalog import INT8, UINT4
from foldmark.kernels.compiled import _LOOPS
w = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
schemes = {
    "symmetric": fm.symmetric(INT8, fm.per_axis(0)),
    "groups": fm.asymmetric(UINT4, fm.per_group(32)),
}
compiled = {}
def count(name):
    compiled[name] = sum(len(loop.stats.cache_misses) for loop in _LOOPS) - sum(compiled.values())
for name, scheme in schemes.items():
    tensor = fm.quantize(w, scheme)
    count(name)
    tensor.dequantize()
    count(name + " back")
print(json.dumps(compiled))
"""


def in_a_fresh_process(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    ).stdout


def test_the_first_call_does_not_keep_anyone_waiting(tmp_path: Path) -> None:
    # Each call waits for one loop at most, the very first for none; later processes for none.
    cold = json.loads(in_a_fresh_process(FIRST_CALL, NUMBA_CACHE_DIR=str(tmp_path)))
    warm = json.loads(in_a_fresh_process(FIRST_CALL, NUMBA_CACHE_DIR=str(tmp_path)))
    assert cold == {"symmetric": 0, "symmetric back": 1, "groups": 1, "groups back": 1}
    assert set(warm.values()) == {0}


KEPT = """
import json, sys
import numpy as np
from loops import falling, total
halves = np.full(5, 0.5, np.float32)
kept = [total(halves), falling(6).tolist()]
there = "numba.np.arraymath" in sys.modules
fresh = total(np.full(5, 0.5))  # a type that was not seen before
print(json.dumps([kept, there, fresh, "numba.np.arraymath" in sys.modules, falling(3).tolist()]))
"""
LOOPS = """
import numpy as np
from foldmark.kernels.compiled import compiled

@compiled
def total(numbers):
    found = numbers[0]
    for i in range(1, numbers.size):
        found += numbers[i]
    return found

@compiled
def falling(count):
    made = np.zeros(count, np.int64)
    for i in range(count):
        made[i] = count - i
    return made
"""


def test_kept_code_runs_without_the_compiler(tmp_path: Path) -> None:
    """Loops read from disk need nothing that compiling needs, and compiling works behind them."""
    (tmp_path / "loops.py").write_text(LOOPS)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    warm = "from loops import falling, total\nimport numpy as np\n"
    warm += "total(np.ones(2, np.float32)); falling(2)"
    in_a_fresh_process(warm, PYTHONPATH=path, NUMBA_CACHE_DIR=str(tmp_path))
    found = json.loads(in_a_fresh_process(KEPT, PYTHONPATH=path, NUMBA_CACHE_DIR=str(tmp_path)))
    assert found == [[2.5, [6, 5, 4, 3, 2, 1]], False, 2.5, True, [3, 2, 1]]


def test_the_first_call_works_where_no_folder_is_writable() -> None:
    found = in_a_fresh_process(
        "import foldmark as fm, numpy as np\n"
        "from foldmark.exact.catalog import INT8\n"
        "print(fm.quantize(np.ones(3, np.float32), fm.symmetric(INT8)).codes.tolist())",
        NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator",
    )
    assert found.strip() == "[127, 127, 127]"


@pytest.mark.parametrize(
    "scheme",
    [
        fm.symmetric(INT8),
        fm.symmetric(INT8, fm.per_axis(1)),
        fm.asymmetric(UINT8, fm.per_group(64)),
        Scheme(fm.symmetric(INT4).rule, fm.per_group(32, axis=0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[:, ::2]])
def test_no_temporaries_of_the_inputs_size(scheme: Scheme, view: object) -> None:
    array = view(np.random.default_rng(0).standard_normal((2048, 4096)).astype(np.float32))
    fm.quantize(array[:64, :64], scheme)
    tracemalloc.start()
    tensor = fm.quantize(array, scheme)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = tensor.codes.nbytes + tensor.scale.nbytes + tensor.zero_point.nbytes
    tables = 12 * 8 * tensor.scale.size  # ranges, scales and zero points while they are chosen
    pieces = 16 * 8 * (1 << 16) * thread_count()
    assert peak < kept + tables + pieces
    assert peak < array.nbytes + tables


def test_flushing_subnormals_elsewhere_changes_nothing_here() -> None:
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor can't")
    try:
        array = np.full(300_000, 3e-41, np.float32)
        array[::3] = 1e-38
        found: list[float] = []

        def look() -> None:
            found.extend(float(n) for n in fm.quantize(array, fm.symmetric(INT8)).scale)

        thread = Thread(target=look)  # a thread of its own has the processor's usual setting
        thread.start()
        thread.join()
    finally:
        torch.set_flush_denormal(False)
    assert found == [1.0]  # 1e-38 / 127 has no full mantissa


def test_every_piece_is_worked_on_once() -> None:
    seen: list[int] = []
    each(seen.append, range(1000))
    assert sorted(seen) == list(range(1000))


def test_an_error_in_any_thread_is_raised_and_the_rest_is_left() -> None:
    seen: list[int] = []

    def work(piece: int) -> None:
        seen.append(piece)
        raise DataMismatch("found by a thread", got=str(piece))

    with pytest.raises(DataMismatch, match="found by a thread"):
        each(work, range(10_000))
    assert len(seen) <= 2 * thread_count()


def test_many_threads_may_call_at_once() -> None:
    array = np.random.default_rng(0).standard_normal((300, 700)).astype(np.float32)
    expected = fm.quantize(array, fm.asymmetric(UINT4, fm.per_group(7))).codes
    agree: list[bool] = []

    def call() -> None:
        codes = fm.quantize(array, fm.asymmetric(UINT4, fm.per_group(7))).codes
        agree.append(np.array_equal(codes, expected))

    threads = [Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agree == [True] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    array = np.random.default_rng(0).standard_normal((2000, 700)).astype(np.float32)
    expected = fm.quantize(array, fm.symmetric(INT8)).codes
    child = os.fork()
    if child == 0:
        same = np.array_equal(fm.quantize(array, fm.symmetric(INT8)).codes, expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_number_of_threads_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDMARK_THREADS", "3")
    assert thread_count() == 3
    array = np.random.default_rng(0).standard_normal((300, 7000)).astype(np.float32)
    three = fm.quantize(array, fm.symmetric(INT8)).codes
    monkeypatch.setenv("FOLDMARK_THREADS", "1")
    assert np.array_equal(fm.quantize(array, fm.symmetric(INT8)).codes, three)


def test_pieces_cover_every_element_once() -> None:
    for shape, block in (
        ((3, 200_001), (1, 200_001)),
        ((3, 200_001), (1, 96)),
        ((700, 300), (700, 1)),
        ((5, 7, 40_000), (2, 7, 1000)),
        ((5, 7, 40_000), (1, 3, 40_000)),
    ):
        layout = Layout.of(np.empty(shape, np.int8), block)
        count = np.zeros((layout.rows, layout.length), np.int64)
        for piece in layout.pieces():
            count[piece.first : piece.last, piece.start : piece.stop] += 1
            assert piece.grid_columns.stop <= layout.table[1]
        assert (count == 1).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_bad_number_among_millions(dtype: type) -> None:
    array = np.ones((3, 400_000), dtype)
    assert first_non_finite(array) is None
    array[2, 1], array[1, 399_999] = np.nan, -np.inf
    assert first_non_finite(array) == (1, 399_999)
    assert first_non_finite(array[:, ::-1]) == (1, 0)
