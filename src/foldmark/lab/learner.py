"""The program that runs in the learner's own interpreter; foldmark never imports it.

`sandbox` hands its text to `python -I -S -c`. One JSON request arrives on stdin (the learner's
source and the calls to make); one JSON line an answer leaves on what was stdout. Whatever the
learner prints goes to stderr. This interpreter holds inputs only: what is expected is worked
out elsewhere, after this process has ended.
"""

import json
import os
import sys
import types
from typing import Any

# An audit hook can't be taken off again. Its text is compiled with every constant written in
# and calls nothing by a name that the learner could rebind: a patched builtin does not blind it.
GUARD = """
def guard(event, arguments):
    if event == "import":
        name = "".__class__.partition(arguments[0], ".")[0]
        if name not in {standard} or name in {refused_modules}:
            raise ImportError(name, name="refused:" + name)
        if arguments[1] is not None and not "".__class__.startswith(arguments[1], {library}):
            raise ImportError(name, name="refused:" + name)
        return
    if event in {path_events}:
        path = arguments[0]
        kind = ().__class__.__class__(path)
        if kind is b"".__class__:
            path = path.decode("utf-8", "replace")
        elif kind is (0).__class__ or path is None:
            return
        elif kind is not "".__class__:
            raise PermissionError("refused:" + event)
        if ".." in path:
            raise PermissionError("refused:open " + path[:60])
        if "".__class__.startswith(path, {scratch}) or not "".__class__.startswith(path, {root}):
            return
        writes = event == "open" and (0).__class__(arguments[2] or 0) & 3
        if not writes and "".__class__.startswith(path, {library}):
            if "site-packages" not in path and "dist-packages" not in path:
                return
        raise PermissionError("refused:open " + path[:60])
    if event in {harmless}:
        return
    if event == "object.__setattr__" and arguments[1] == "__code__":
        raise PermissionError("refused:" + event)
    if "".__class__.startswith(event, {refused_events}):
        raise PermissionError("refused:" + event)
"""

REFUSED_MODULES = frozenset(
    {
        *("ctypes", "_ctypes", "multiprocessing", "_multiprocessing", "_posixshmem", "pty"),
        *("subprocess", "_posixsubprocess", "socket", "_socket", "ssl", "sqlite3", "_sqlite3"),
        # They read files, or make interpreters and memory, without an audit event.
        *("readline", "_testcapi", "_testinternalcapi", "_xxsubinterpreters", "_interpreters"),
        *("_xxinterpchannels", "_interpchannels", "_interpqueues"),
    }
)
REFUSED_EVENTS = (
    *("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "gc.", "resource.", "pty."),
    *("code.__new__", "sqlite3.", "signal."),
    *("urllib.", "http.", "ftplib.", "smtplib.", "poplib.", "imaplib.", "nntplib.", "telnetlib."),
    *("fcntl.", "syslog.", "webbrowser.", "winreg.", "msvcrt.", "_winapi.", "ensurepip."),
    *("setopencodehook", "cpython._PySys_ClearAuditHooks", "cpython.PyInterpreterState_New"),
)
PATH_EVENTS = frozenset({"open", "os.listdir", "os.scandir"})
HARMLESS = frozenset({"os.putenv", "os.unsetenv", "os.walk", "os.fwalk"})

MAX_TEXT = 300
MAX_DEPTH = 6
MAX_INTEGER_BITS = 4096


def set_limits(memory_bytes: int, cpu_seconds: int) -> None:
    """Bound memory, processor time and file size for the rest of this process's life."""
    try:
        import resource  # noqa: PLC0415  (not on every system)
    except ImportError:
        return
    for limit, amount in (
        ("RLIMIT_AS", memory_bytes),
        ("RLIMIT_CPU", cpu_seconds),
        ("RLIMIT_FSIZE", 1 << 20),
        ("RLIMIT_CORE", 0),
    ):
        kind = getattr(resource, limit, None)
        if kind is None:
            continue
        try:
            resource.setrlimit(kind, (amount, amount + (limit == "RLIMIT_CPU")))
        except (ValueError, OSError):  # some systems can't bound address space
            continue


def written(names: frozenset[str]) -> str:
    """Return a set display of the names: the compiler makes it a constant, no name is looked up."""
    return "{" + ", ".join(map(repr, sorted(names))) + "}"


def set_guard(scratch: str) -> None:
    """Refuse, for good, imports beyond the standard library, files, processes and network."""
    library = tuple(path.rstrip(os.sep) + os.sep for path in sys.path if path)
    text = GUARD.format(
        standard=written(sys.stdlib_module_names | {"quant"}),
        refused_modules=written(REFUSED_MODULES),
        path_events=written(PATH_EVENTS),
        harmless=written(HARMLESS),
        library=repr((*library, *(path.rstrip(os.sep) for path in library))),
        scratch=repr(scratch.rstrip(os.sep) + os.sep),
        root=repr(os.path.abspath(os.sep)),  # noqa: PTH100  (a plain string is wanted)
        refused_events=repr(REFUSED_EVENTS),
    )
    place: dict[str, Any] = {}
    exec(compile(text, "<guard>", "exec"), place)
    sys.addaudithook(place.pop("guard"))


def plain(value: object, depth: int = 0) -> object:
    """Return the value as JSON can carry it; raise TypeError with the name of what it can't."""
    kind = type(value)
    if kind is int and value.bit_length() > MAX_INTEGER_BITS:  # type: ignore[attr-defined]
        raise TypeError(f"int of more than {MAX_INTEGER_BITS} bits")
    if value is None or kind in (int, float, bool):
        return value
    if kind is str:
        return str(value)[:MAX_TEXT]
    if kind in (list, tuple) and depth < MAX_DEPTH:
        return [plain(item, depth + 1) for item in value]  # type: ignore[attr-defined]
    raise TypeError(kind.__name__)


def learner_line(error: BaseException) -> int:
    """Return the last line of quant.py that the error passed through; 0 if it met none."""
    line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "quant.py":
            line = step.tb_lineno
        step = step.tb_next
    return line


def fault(error: BaseException) -> dict[str, object]:
    """Return what an exception says, as an answer."""
    try:
        message = (error.msg if isinstance(error, SyntaxError) else str(error))[:MAX_TEXT]
    except BaseException:  # an exception whose text raises
        message = ""
    name = getattr(error, "name", None)
    found: dict[str, object] = {
        "raised": type(error).__name__[:MAX_TEXT],
        "message": message,
        "line": learner_line(error),
    }
    if isinstance(error, ImportError) and isinstance(name, str) and name.startswith("refused:"):
        found["refused_import"] = name.removeprefix("refused:")
    elif isinstance(error, PermissionError) and message.startswith("refused:"):
        found["refused_action"] = message.removeprefix("refused:")
    return found


def answer(module: types.ModuleType, function: str, text: str) -> dict[str, object]:
    """Call one function of the learner's with fresh arguments and return its answer."""
    target = getattr(module, function, None)
    if not callable(target):
        return {"missing": True}
    arguments = json.loads(text)
    try:
        result = target(*arguments)
    except BaseException as error:
        return fault(error)
    try:
        value = plain(result)
    except TypeError as error:
        return {"not_a_value": str(error)}
    except RecursionError:
        return {"not_a_value": type(result).__name__}
    return {"value": value, "changed": arguments != json.loads(text)}


def main() -> None:
    """Read the request, load the learner's file, make the calls."""
    request = json.loads(sys.stdin.buffer.read())
    answers = os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    write, encode = os.write, json.JSONEncoder().encode

    def send(message: dict[str, object]) -> None:
        line = encode(message).encode() + b"\n"
        while line:
            line = line[write(answers, line) :]

    module = types.ModuleType("quant")
    module.__file__ = "quant.py"
    sys.modules["quant"] = module
    set_limits(request["memory_bytes"], request["cpu_seconds"])
    set_guard(os.getcwd())  # noqa: PTH109  (a plain string is wanted)
    try:
        exec(compile(request["source"], "quant.py", "exec"), module.__dict__)
    except BaseException as error:
        send({"load": fault(error)})
        return
    send({"load": None})
    for function, text in request["calls"]:
        send(answer(module, function, text))


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # the learner's file broke the interpreter under us: say nothing more
        os._exit(70)
