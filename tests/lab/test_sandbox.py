"""What a learner's file may not do costs one clear answer, and never the grader."""

import time

import pytest

from foldmark.lab.sandbox import Call, Limits, Returned, Run, Stop, Stopped, call

QUICK = Limits(cpu_seconds=1, wall_seconds=6.0)
PATIENT = Limits(cpu_seconds=20, wall_seconds=60.0)


def run(body: str, *arguments: object, limits: Limits = PATIENT) -> Run:
    """Run a function with the given body twice: with the arguments, then again."""
    source = "def f(*arguments):\n" + "\n".join(f"    {line}" for line in body.splitlines())
    return call(source, [Call("f", tuple(arguments))] * 2, limits)


STOPS = [
    ("while True: pass", Stop.TIME),
    ("import time; time.sleep(60)", Stop.TIME),
    ("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", Stop.TIME),
    ("import os\nos.abort()", Stop.CRASHED),
    ("while True: print('flood')", Stop.PRINTED),
    ("import sys; sys.exit(0)", Stop.EXITED),
    ("import os; os._exit(0)", Stop.EXITED),
    ("raise SystemExit", Stop.EXITED),
    ("def g(x): return 1 + g(x)\nreturn g(1)", Stop.RECURSION),
    ("raise NotImplementedError", Stop.NOT_WRITTEN),
    ("return 1 / 0", Stop.RAISED),
    ("raise KeyboardInterrupt", Stop.RAISED),
    ("return bytearray(1 << 40)", Stop.MEMORY),
    ("return [0] * (1 << 30)", Stop.MEMORY),
    ("return [0] * 5_000_000", Stop.TOO_MUCH),
    ("return 1j", Stop.NOT_A_VALUE),
    ("return {1: 2}", Stop.NOT_A_VALUE),
    ("return lambda: 3", Stop.NOT_A_VALUE),
    ("nested = []; nested.append(nested); return nested", Stop.NOT_A_VALUE),
    ("return 10 ** 5000", Stop.NOT_A_VALUE),
    ("import fractions; return fractions.Fraction(1, 2)", Stop.NOT_A_VALUE),
    ("import numpy", Stop.REFUSED_IMPORT),
    ("import foldmark.exact", Stop.REFUSED_IMPORT),
    ("import pip", Stop.REFUSED_IMPORT),
    ("import helper", Stop.REFUSED_IMPORT),
    ("import socket", Stop.REFUSED_IMPORT),
    ("import subprocess", Stop.REFUSED_IMPORT),
    ("import ctypes", Stop.REFUSED_IMPORT),
    ("import multiprocessing", Stop.REFUSED_IMPORT),
    ("import urllib.request", Stop.REFUSED_IMPORT),
    ("import asyncio", Stop.REFUSED_IMPORT),
    ("import os; os.fork()", Stop.REFUSED_ACTION),
    ("import os; os.system('true')", Stop.REFUSED_ACTION),
    ("import os; os.execv('/bin/true', ['true'])", Stop.REFUSED_ACTION),
    ("import os; os.posix_spawn('/bin/true', ['true'], {})", Stop.REFUSED_ACTION),
    ("import os; os.kill(os.getppid(), 0)", Stop.REFUSED_ACTION),
    ("import os; os.chdir('/')", Stop.REFUSED_ACTION),
    ("import os; os.symlink('/etc', 'etc')", Stop.REFUSED_ACTION),
    ("import os; os.remove('/tmp/nothing')", Stop.REFUSED_ACTION),
    ("import os; os.listdir('/')", Stop.REFUSED_ACTION),
    ("open('/etc/passwd')", Stop.REFUSED_ACTION),
    ("open('/proc/self/maps')", Stop.REFUSED_ACTION),
    ("open('../outside', 'w')", Stop.REFUSED_ACTION),
    ("import os; open(os.__file__, 'a')", Stop.REFUSED_ACTION),
    ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))", Stop.REFUSED_ACTION),
    ("import gc; gc.get_objects()", Stop.REFUSED_ACTION),
    ("f.__code__ = (lambda: 0).__code__", Stop.REFUSED_ACTION),
    ("f.__code__.replace(co_consts=())", Stop.REFUSED_ACTION),
    ("import shutil; shutil.rmtree('.')", Stop.REFUSED_ACTION),
]


@pytest.mark.parametrize(("body", "stop"), STOPS, ids=[body[:40] for body, _ in STOPS])
def test_what_is_not_allowed_is_stopped_and_named(body: str, stop: Stop) -> None:
    started = time.monotonic()
    # Only what never ends needs a short limit; the others must not be cut off on a busy machine.
    limits = QUICK if stop == Stop.TIME else PATIENT
    result = run(body, limits=limits)
    assert result.load is None
    assert isinstance(result.answers[0], Stopped)
    assert result.answers[0].stop == stop
    assert time.monotonic() - started < limits.wall_seconds + 5


def test_a_patched_interpreter_does_not_open_the_door() -> None:
    for line in (
        "builtins.isinstance = lambda *a: True",
        "builtins.PermissionError = builtins.ImportError = lambda *a, **k: None",
        "builtins.str = builtins.bytes = builtins.type = builtins.frozenset = None",
    ):
        result = run(
            f"import builtins\n{line}\ntry:\n    open('/etc/passwd')\nexcept BaseException:\n"
            "    return 'refused'\nreturn 'read'"
        )
        assert not any(isinstance(a, Returned) and a.value == "read" for a in result.answers)


def test_a_path_that_lies_about_itself_is_refused() -> None:
    result = run(
        "class Path(str):\n"
        "    def startswith(self, *a): return True\n"
        "    def __contains__(self, other): return False\n"
        "try:\n    open(Path('/etc/passwd'))\n"
        "except BaseException:\n    return 'refused'\n"
        "return 'read'"
    )
    assert result.answers[0] == Returned("refused")


def test_the_guard_is_not_to_be_found_through_its_own_error() -> None:
    result = run(
        "try:\n    open('/etc/passwd')\n"
        "except PermissionError as error:\n"
        "    frame = error.__traceback__.tb_next.tb_frame\n"
        "    frame.f_globals.clear()\n"
        "    frame.f_locals['path'] = '.'\n"
        "try:\n    open('/etc/passwd')\n"
        "except BaseException:\n    return 'refused'\n"
        "return 'read'"
    )
    assert result.answers[0] == Returned("refused")


def test_the_standard_library_is_open() -> None:
    modules = (
        "math statistics fractions decimal random itertools functools operator collections "
        "dataclasses typing enum struct array bisect heapq copy re string textwrap time datetime "
        "os sys pathlib json logging traceback contextlib abc numbers pprint doctest unittest"
    )
    body = "\n".join(f"import {name}" for name in modules.split())
    result = run(f"{body}\nreturn 1")
    assert result.answers == (Returned(1), Returned(1))


def test_common_tools_of_the_library_work() -> None:
    result = run(
        "from collections import namedtuple\nfrom dataclasses import dataclass\nimport enum\n"
        "Pair = namedtuple('Pair', 'a b')\n"
        "@dataclass(frozen=True)\nclass Point:\n    x: int\n"
        "class Colour(enum.Enum):\n    RED = 1\n"
        "import threading\nfound = []\n"
        "thread = threading.Thread(target=found.append, args=(4,))\nthread.start()\nthread.join()\n"
        "open('note.txt', 'w').write('kept here')\n"
        "return [*Pair(1, 2), Point(3).x, found[0], len(open('note.txt').read())]"
    )
    assert result.answers[0] == Returned([1, 2, 3, 4, 9])


def test_values_come_back_bit_for_bit() -> None:
    numbers = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 3, -(2**70), True, None, [1, [2.5]]]
    result = run("return arguments[0]", numbers)
    assert repr(result.answers[0]) == repr(Returned(numbers))
    infinite = run("return [float('inf'), float('nan')]").answers[0]
    assert isinstance(infinite, Returned)
    assert repr(infinite.value) == "[inf, nan]"


def test_tuples_are_lists_and_changed_arguments_are_seen() -> None:
    assert run("return (1, (2,))").answers[0] == Returned([1, [2]])
    changed = run("arguments[0].append(9); return 1", [1])
    assert changed.answers == (Returned(1, changed=True),) * 2  # each call gets a fresh list


def test_answers_before_the_end_are_kept() -> None:
    source = "def f(x):\n    while x == 2: pass\n    return x"
    result = call(source, [Call("f", (n,)) for n in (0, 1, 2, 3)], QUICK)
    assert result.answers == (Returned(0), Returned(1), Stopped(Stop.TIME))


def test_loading_can_fail_in_every_way() -> None:
    for source, stop in (
        ("x = (", Stop.RAISED),
        ("1 / 0", Stop.RAISED),
        ("import sys; sys.exit()", Stop.EXITED),
        ("while True: pass", Stop.TIME),
        ("import numpy", Stop.REFUSED_IMPORT),
        ("x = '\\0' * (1 << 40)", Stop.MEMORY),
        ("import os\nos.close(3); os.close(1)", Stop.EXITED),
    ):
        limits = QUICK if stop == Stop.TIME else PATIENT
        load = call(source, [], limits).load
        assert (load.stop if load else None) == stop, source
    syntax = call("a = 1\nb = (", [], PATIENT).load
    assert syntax is not None
    assert syntax.line == 2


def test_a_forged_line_on_the_pipe_is_no_answer() -> None:
    result = run(
        "import os\nfor fd in range(3, 9):\n    try: os.write(fd, b'not json\\n')\n"
        "    except OSError: pass\nreturn 1"
    )
    assert result.answers[0] == Stopped(Stop.GARBLED)


def test_the_process_is_told_inputs_and_nothing_else() -> None:
    """The request is all that the process ever gets: the source, the calls, and two limits."""
    result = run(
        "import sys\nframe = sys._getframe()\nwhile frame.f_back:\n    frame = frame.f_back\n"
        "request = [f for f in [sys._getframe(n) for n in range(4)] if 'request' in f.f_locals]\n"
        "return sorted(request[0].f_locals['request'])",
        2.5,
    )
    expected = ["calls", "cpu_seconds", "memory_bytes", "source"]
    assert result.answers[0] == Returned(expected)


def test_the_environment_of_the_grader_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    result = run("import os; return sorted(os.environ)")
    assert isinstance(result.answers[0], Returned)
    assert "SECRET" not in result.answers[0].value


def test_nothing_is_left_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    run("open('left.txt', 'w').write('x'); return 1")
    assert list(folder.iterdir()) == []
