"""Call functions of a learner's file in a process of their own, and bring back what they said.

The process gets inputs and returns outputs over a pipe. It is bounded in time, memory and
print, works in an empty temporary directory, and can open no file, socket or process. No
expected value exists while it runs: the caller works them out from the answers' inputs after
`call` has returned, when the process is dead.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

__all__ = ["Answer", "Call", "Limits", "Returned", "Run", "Stop", "Stopped", "call"]


@dataclass(frozen=True)
class Limits:
    """What one process of the learner's may use."""

    cpu_seconds: int = 4
    wall_seconds: float = 15.0
    memory_bytes: int = 512 << 20
    printed_bytes: int = 64 << 10
    answer_bytes: int = 8 << 20


@dataclass(frozen=True)
class Call:
    """One call to make: the function's name and its arguments (numbers and lists of them)."""

    function: str
    arguments: tuple[Any, ...]


class Stop(Enum):
    """Why a call gave no value."""

    RAISED = "raised"
    NOT_WRITTEN = "not_written"
    MISSING = "missing"
    REFUSED_IMPORT = "refused_import"
    REFUSED_ACTION = "refused_action"
    TIME = "time"
    MEMORY = "memory"
    PRINTED = "printed"
    RECURSION = "recursion"
    EXITED = "exited"
    CRASHED = "crashed"
    NOT_A_VALUE = "not_a_value"
    TOO_MUCH = "too_much"
    GARBLED = "garbled"


@dataclass(frozen=True)
class Returned:
    """A value came back; `changed` says that the function altered its own arguments."""

    value: Any
    changed: bool = False


@dataclass(frozen=True)
class Stopped:
    """No value came back: the reason, what names it (a module, an exception), and the line."""

    stop: Stop
    detail: str = ""
    line: int = 0


Answer = Returned | Stopped


@dataclass(frozen=True)
class Run:
    """What one process did: how loading went, the answers in order, and what it printed.

    `answers` is shorter than the calls when the process ended early; its last one says why.
    """

    load: Stopped | None
    answers: tuple[Answer, ...]
    printed: str = ""


_EXCEPTIONS = {
    "NotImplementedError": Stop.NOT_WRITTEN,
    "MemoryError": Stop.MEMORY,
    "RecursionError": Stop.RECURSION,
    "SystemExit": Stop.EXITED,
}
_LEARNER = Path(__file__).with_name("learner.py")


class _Collector(threading.Thread):
    """Reads a pipe to its end, or until it has read too much."""

    def __init__(self, pipe: IO[bytes], limit: int, changed: threading.Event) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._limit = limit
        self._changed = changed
        self.data = bytearray()
        self.ended = False

    @property
    def overflowed(self) -> bool:
        """Whether more came than was allowed."""
        return len(self.data) > self._limit

    def run(self) -> None:
        """Collect until the pipe ends or the limit is passed."""
        while not self.overflowed:
            piece = os.read(self._pipe.fileno(), 65536)
            if not piece:
                break
            self.data += piece
            self._changed.set()
        self.ended = True
        self._changed.set()


def call(source: str, calls: Sequence[Call], limits: Limits | None = None) -> Run:
    """Load the source in a fresh process, make the calls there, and return their answers."""
    bounds = limits or Limits()
    scratch = tempfile.mkdtemp(prefix="foldmark-lab-")
    try:
        return _run(source, calls, bounds, os.path.realpath(scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(source: str, calls: Sequence[Call], limits: Limits, scratch: str) -> Run:
    request = json.dumps(
        {
            "source": source,
            "calls": [(call.function, json.dumps(call.arguments)) for call in calls],
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
        }
    )
    process = _begin(scratch)
    assert process.stdin and process.stdout and process.stderr
    changed = threading.Event()
    answers = _Collector(process.stdout, limits.answer_bytes, changed)
    printed = _Collector(process.stderr, limits.printed_bytes, changed)
    try:
        answers.start()
        printed.start()
        with suppress(OSError):  # a process that died at once says why on its other pipes
            process.stdin.write(request.encode())
            process.stdin.close()
        in_time = _wait(answers, printed, changed, len(calls) + 1, limits.wall_seconds)
    finally:
        _end(process)
    answers.join(1)
    printed.join(1)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):
            pipe.close()
    ending = _ending(process.returncode, answers, printed, in_time)
    return _read(bytes(answers.data), len(calls), ending, bytes(printed.data))


def _begin(scratch: str) -> subprocess.Popen[bytes]:
    """Start an interpreter without site packages, without our environment, in an empty folder."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _LEARNER.read_text(encoding="utf-8")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=scratch,
        env={"HOME": scratch, "TMPDIR": scratch, "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )


def _wait(
    answers: _Collector, printed: _Collector, changed: threading.Event, lines: int, seconds: float
) -> bool:
    """Wait until all is answered, a pipe ends or floods, or time is up; say if it was in time."""
    deadline = time.monotonic() + seconds
    while True:
        changed.clear()
        if answers.ended or printed.overflowed or answers.data.count(b"\n") >= lines:
            return True
        if not changed.wait(max(0.0, deadline - time.monotonic())):
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it may have started."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.05)
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()


def _ending(
    returncode: int, answers: _Collector, printed: _Collector, in_time: bool
) -> Stopped | None:
    """Return why a process may have ended before its last answer; None when nothing is known."""
    if printed.overflowed:
        return Stopped(Stop.PRINTED)
    if answers.overflowed:
        return Stopped(Stop.TOO_MUCH)
    # 24 is the soft limit of processor time. 9 is the hard one for those who ignore it; it is how
    # we end a process, too, but then the answers are complete or the reason is known by now.
    if not in_time or returncode in (-24, -9):
        return Stopped(Stop.TIME)
    if returncode < 0:
        return Stopped(Stop.CRASHED, _signal_name(-returncode))
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _read(data: bytes, expected: int, ending: Stopped | None, printed: bytes) -> Run:
    """Turn the lines that came back into a Run; what can't be read is said, never trusted."""
    messages: list[dict[str, Any] | None] = []
    for line in data.split(b"\n")[:-1]:
        messages.append(_message(line))
    shown = printed.decode("utf-8", "replace")[:2000]
    early = ending or Stopped(Stop.EXITED)
    if not messages:
        return Run(early, (), shown)
    first = messages[0]
    if first is None or "load" not in first:
        return Run(Stopped(Stop.GARBLED), (), shown)
    if first["load"] is not None:
        return Run(_stopped(first["load"]), (), shown)
    answers = [_answer(message) for message in messages[1 : expected + 1]]
    if len(answers) < expected:
        answers.append(early)
    return Run(None, tuple(answers), shown)


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _answer(message: dict[str, Any] | None) -> Answer:
    if message is None:
        return Stopped(Stop.GARBLED)
    if "value" in message:
        return Returned(message["value"], message.get("changed") is True)
    return _stopped(message)


def _stopped(message: object) -> Stopped:
    if not isinstance(message, dict):
        return Stopped(Stop.GARBLED)
    line = message.get("line")
    line = line if isinstance(line, int) else 0
    for key, stop in (
        ("refused_import", Stop.REFUSED_IMPORT),
        ("refused_action", Stop.REFUSED_ACTION),
        ("not_a_value", Stop.NOT_A_VALUE),
    ):
        if key in message:
            return Stopped(stop, str(message[key])[:80], line)
    if "missing" in message:
        return Stopped(Stop.MISSING)
    if "raised" not in message:
        return Stopped(Stop.GARBLED)
    name = str(message["raised"])
    text = f"{name}: {message.get('message', '')}".rstrip(": ")
    return Stopped(_EXCEPTIONS.get(name, Stop.RAISED), " ".join(text.split())[:200], line)
