"""A headless Chromium, spoken to over a pipe in its DevTools protocol: nothing but the browser itself is needed."""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BINARY = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 60.0  # seconds; the machine may be busy


class Page:
    """One tab. `events` is all that the browser has told since it was opened: requests, messages, exceptions."""

    def __init__(self, told: int, heard: int) -> None:
        self.told, self.heard = told, heard
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._rest = b""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command, keep the events that come before its answer, and give the answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.told, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self.heard, 1 << 20)
            assert read, "Chromium has closed its pipe"
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer:
            self.events.append(answer)
        return answer

    def open(self, file: Path, width: int = 1280, height: int = 900, scripts: bool = True) -> float:
        """Open a file and wait until it is loaded; seconds that it took."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.events.clear()
        start = time.monotonic()
        self.ask("Page.navigate", url=file.resolve().as_uri())
        self.until(lambda: self.happened("Page.loadEventFired"))
        return time.monotonic() - start

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, ready: Callable[[], Any]) -> Any:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE
        while not (found := ready()):
            assert time.monotonic() < end, "the page did not get there in time"
            if b"\0" in self._rest or select.select([self.heard], [], [], 0.05)[0]:
                self._next()
        return found

    def happened(self, method: str) -> list[dict[str, Any]]:
        """Parameters of the events of one kind."""
        return [event["params"] for event in self.events if event["method"] == method]

    def press(self, x: float, y: float) -> None:
        """Click with the mouse, at a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A page of a browser that ends with the block; `profile` is a folder of its own."""
    told_out, told_in = os.pipe()
    heard_out, heard_in = os.pipe()

    def pipes() -> None:  # the browser reads its file 3 and writes its file 4
        spare = os.dup(told_out), os.dup(heard_in)
        os.dup2(spare[0], 3)
        os.dup2(spare[1], 4)

    options = (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-background-networking",
        "no-first-run",
    )
    command = [
        str(BINARY),
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        *(f"--{name}" for name in options),
    ]
    browser = subprocess.Popen(
        command, preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL
    )
    os.close(told_out)
    os.close(heard_in)
    try:
        yield Page(told_in, heard_out)
    finally:
        os.close(told_in)
        os.close(heard_out)
        try:
            browser.wait(PATIENCE)
        finally:
            browser.kill()
