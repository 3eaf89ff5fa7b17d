"""A headless Chromium that opens the page as a reader would: to print it, to check it, to press its keys in a test.

Spoken to over a pipe in Chromium's own protocol, so that nothing listens and no driver is needed. Rules: no name is
resolved, so the page has no network; its process group is ended on every path; nothing of it stays on disk. Refused: a
browser that is not installed, does not answer in time, or a script that throws.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lib.errors import NoValue, RecordError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 30.0  # without a word from the browser
HIGH = 20  # the child's ends are moved up here, out of the way of 3 and 4, which the protocol prescribes
PLACE = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
LOCAL = ("file:", "data:", "about:")
OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find() -> str | None:
    """Path of a Chromium or Chrome on this computer, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page, for a `with` statement.

    errors : what the page's console reported as errors, and exceptions that nobody caught.
    requests : addresses it asked for, but for files and inline data.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        self._number = 0
        self._buffer = b""
        self._session: str | None = None

    def __enter__(self) -> "Browser":
        """Start it."""
        program = find()
        if program is None:
            raise NoValue(f"No browser was found; install one of {', '.join(NAMES)} to print or check the page.")
        self._profile = tempfile.mkdtemp(prefix="first-token-sla-browser-")
        read_by_child, self._out = os.pipe()
        self._in, written_by_child = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for fd in (read_by_child, written_by_child)]
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox refuses to run for root

        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    PLACE,
                    *map(str, ends),
                    program,
                    *OPTIONS,
                    *root,
                    f"--user-data-dir={self._profile}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=ends,
            )
        finally:
            for fd in (read_by_child, written_by_child, *ends):
                os.close(fd)
        try:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._ask(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for fd in (self._in, self._out):
            os.close(fd)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file and wait until it is loaded; `fragment` with its hash sign."""
        self._events.clear()
        self._ask("Page.navigate", url="about:blank")
        self._until("Page.loadEventFired")
        self._ask("Page.navigate", url=path.resolve().as_uri() + fragment)
        self._until("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Evaluate a script in the page and return its value.

        Raises
        ------
        RecordError : it threw.
        """
        done = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            told = done["exceptionDetails"].get("exception", {}).get("description", done["exceptionDetails"]["text"])
            raise RecordError(f"A script threw in the page: {told}")
        return done["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release one key, by its name and its Windows key code."""
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window in CSS pixels, and the reader's colour scheme."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def pdf(self) -> bytes:
        """Return the page as it prints."""
        return base64.b64decode(self._ask("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == number:
                if "error" in said:
                    raise RecordError(f"The browser refused {method}: {said['error'].get('message')}.")
                return dict(said["result"])

    def _until(self, event: str) -> None:
        while event not in self._events:
            self._next()
        self._events.remove(event)

    def _next(self) -> dict[str, Any]:
        """Read one message; note what it says of errors and requests."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            piece = os.read(self._in, 1 << 20) if ready else b""
            if not piece:
                raise RecordError(f"The browser said nothing for {PATIENCE_S:g} s or ended; run the command again.")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        said: dict[str, Any] = json.loads(text)
        method, params = said.get("method", ""), said.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(LOCAL):
            self.requests.append(params["request"]["url"])
        return said
