"""A headless Chromium, spoken to over a pipe in its own protocol; nothing to install in Python."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Return the path of a Chromium, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page: commands go out, their answers come back, events are kept."""

    def __init__(self, out: int, back: int) -> None:
        self._out = out
        self._back = back
        self._session: str | None = None
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def attach(self) -> None:
        """Turn to a new empty tab."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def open(self, address: str) -> None:
        """Open an address and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, as a person does."""
        down = {"type": "keyDown" if text else "rawKeyDown", "key": key, "code": key}
        self.send("Input.dispatchKeyEvent", **down, windowsVirtualKeyCode=code, text=text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Press, move or release the left button of the mouse at a place."""
        self.send(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._back, 1 << 16)
            assert piece, "Chromium went away"
            self._rest += piece
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Page]:
    """Start Chromium, hand out one page, and end it."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()

    def take_places() -> None:
        # Chromium reads commands from descriptor 3 and writes to 4.
        low, high = os.dup(their_in), os.dup(their_out)
        os.dup2(low, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        [
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *("--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=take_places,  # noqa: PLW1509  (no other way to numbers 3 and 4)
        pass_fds=(3, 4, their_in, their_out),
    )
    os.close(their_in)
    os.close(their_out)
    try:
        page = Page(our_out, our_in)
        page.attach()
        yield page
        with suppress(OSError, AssertionError):
            page.send("Browser.close")
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()
        os.close(our_out)
        os.close(our_in)
