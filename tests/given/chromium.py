"""A headless Chromium, driven over a pipe by its DevTools protocol: needs only the browser."""

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

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for path in map(shutil.which, COMMANDS) if path), None)
TIMEOUT_SECONDS = 60.0  # the machine may be busy

Event = dict[str, Any]


class Page:
    """One tab. `events` are all that the browser reported since a file was opened in it.

    Among them are requests, messages and exceptions.
    """

    def __init__(self, write_end: int, read_end: int) -> None:
        """`write_end` and `read_end` are the descriptors of pipes to and from the browser."""
        self.write_end = write_end
        self.read_end = read_end
        self.events: list[Event] = []
        self.session: str | None = None
        self._message_ids = itertools.count(1)
        self._unparsed = b""

        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; events that come before it are kept."""
        message_id = next(self._message_ids)
        message = {"id": message_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> Event:
        """The next message of the browser."""
        while b"\0" not in self._unparsed:
            received = os.read(self.read_end, 1 << 20)
            assert received, "Chromium has closed its pipe"
            self._unparsed += received
        message, self._unparsed = self._unparsed.split(b"\0", 1)
        event: Event = json.loads(message)
        if "method" in event:
            self.events.append(event)
        return event

    def open(self, file: Path, width: int = 1280, height: int = 900, scripts: bool = True) -> float:
        """Open a file and wait until it is loaded; the seconds that it took."""
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
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds, and return its value."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            value = condition()
            if value:
                return value
            assert time.monotonic() < deadline, f"not so within {TIMEOUT_SECONDS} s"
            has_message = b"\0" in self._unparsed
            if has_message or select.select([self.read_end], [], [], 0.05)[0]:
                self._receive()

    def happened(self, method: str) -> list[dict[str, Any]]:
        """Parameters of the events of one kind."""
        return [event["params"] for event in self.events if event["method"] == method]

    def press(self, x: float, y: float) -> None:
        """Click with the mouse at a position in the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextlib.contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """A page of a browser that ends with the block; `profile` is an empty folder for it."""
    browser_input, write_end = os.pipe()
    read_end, browser_output = os.pipe()

    def connect_pipes() -> None:
        """The browser reads its descriptor 3 and writes its descriptor 4."""
        # Copied first: either descriptor may itself be number 3 or 4.
        input_copy = os.dup(browser_input)
        output_copy = os.dup(browser_output)
        os.dup2(input_copy, 3)
        os.dup2(output_copy, 4)

    command = [
        str(CHROMIUM),
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ]
    browser = subprocess.Popen(
        command, preexec_fn=connect_pipes, close_fds=False, stderr=subprocess.DEVNULL
    )
    os.close(browser_input)
    os.close(browser_output)
    try:
        yield Page(write_end, read_end)
    finally:
        os.close(write_end)
        os.close(read_end)
        try:
            browser.wait(TIMEOUT_SECONDS)
        finally:
            browser.kill()
