"""A headless Chromium, driven over DevTools messages through a pair of pipes: no package needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "HOLDOVER_REQUIRE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# A busy machine starts a browser slowly; a browser that hangs must not hang the tests.
PATIENCE = 60.0


def find_or_skip() -> str:
    """The browser's program. Without one the test is skipped, or fails where one was promised."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    reason = "no Chromium: on Debian, apt-get install chromium"
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason} ({REQUIRED}=1 asks for it)")
    pytest.skip(reason)


class Browser:
    """One tab. What it was asked to load and what went wrong in it is kept."""

    def __init__(self, program: str) -> None:
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._unread = b""
        self._last_id = 0
        self._session: str | None = None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._write = _pipe()
        self._read, answers = _pipe()
        # Chromium reads commands at 3 and answers at 4; bash puts the pipes there.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash"),
                *(program, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"),
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        targets = self("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self(f"{part}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command and wait for its answer."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, path: Path, width: int, height: int, scheme: str, script: bool = True) -> None:
        """Show a file at this size, and wait until it is loaded."""
        self.requested, self.complaints = [], []
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        self(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self("Emulation.setScriptExecutionDisabled", value=not script)
        self._events.clear()
        self("Page.navigate", url=path.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next()

    def value(self, expression: str) -> Any:
        """What a line of JavaScript comes to in the page."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        self("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def wait_for(self, expression: str) -> None:
        """Until a line of JavaScript comes true."""
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"It never came true: {expression}")
            time.sleep(0.02)

    def screenshot(self) -> bytes:
        return base64.b64decode(self("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        try:
            self._session = None
            self("Browser.close")
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)
            self._folder.cleanup()

    def _next(self) -> dict[str, Any]:
        """The next message, noted where it tells of a request or of something gone wrong."""
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer, or has ended.")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message = json.loads(line)
        told = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"]))
            case "Log.entryAdded":
                self.complaints.append(told["entry"]["text"])
        if "method" in message:
            self._events.append(message)
        return message


def _pipe() -> tuple[int, int]:
    """A pipe's two ends, at numbers that do not get in the way of 3 and 4."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    return ends[0], ends[1]
