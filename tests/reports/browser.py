"""A headless Chromium for tests, by its DevTools protocol over a pipe: no driver, no package."""

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = shlex.split("""
    --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars
    --remote-debugging-pipe --disable-background-networking --disable-component-update --disable-sync
    --disable-default-apps --disable-extensions
""")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


def found() -> str | None:
    """Return the path of a browser, None where there is none."""
    names = (os.environ.get("ATCL_BROWSER", ""), *NAMES)
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """One browser with one page."""

    def __init__(self, path: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="atcl-browser-", ignore_cleanup_errors=True)
        theirs, self.to = os.pipe()
        self.answers, ours = os.pipe()
        # the protocol lives on descriptors 3 and 4, which the shell puts there
        script = f'exec "$@" 3<&{theirs} 4>&{ours}'
        words = ["bash", "-c", script, "bash", path, *QUIET, f"--user-data-dir={self.profile.name}"]
        silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen([*words, "about:blank"], pass_fds=(theirs, ours), **silent)
        os.close(theirs)
        os.close(ours)
        self.buffer, self.number = b"", 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        (page, *_) = [one for one in targets if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for descriptor in (self.to, self.answers):
            os.close(descriptor)
        self.profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that come in between are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            if not select.select([self.answers], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file at a width, in a colour scheme, and wait until it is there."""
        self.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(one["method"] == "Page.loadEventFired" for one in self.events):
            self._next(60)
        self.settle()

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the window."""
        options = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **options)

    def settle(self) -> None:
        """Wait until what is due has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        """Return errors and warnings since the page was opened, and its requests to the network."""
        found = []
        for event in self.events:
            method, details = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(details["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
                found.append(str(details["args"]))
            elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                found.append(str(details["entry"]))
            elif method == "Network.requestWillBeSent":
                url = details["request"]["url"]
                found += [] if url.startswith(("file:", "data:")) else [f"request of {url}"]
        return found

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                options = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
                self.call("Input.dispatchKeyEvent", type=kind, **options)
        self.settle()

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save what is shown as a PNG file."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
