"""A headless Chromium for tests, spoken to over a pipe in its DevTools protocol: no driver and no package is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-default-apps",
        "--disable-extensions",
    ),
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


def found() -> str | None:
    """Return the path of a browser, None where there is none."""
    return next(
        (path for path in map(shutil.which, (os.environ.get("ATCL_BROWSER", ""), *NAMES)) if path), None
    )


class Browser:
    """One browser with one page."""

    def __init__(self, path: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="atcl-browser-", ignore_cleanup_errors=True)
        theirs, self.to = os.pipe()
        self.answers, ours = os.pipe()
        # the protocol lives on descriptors 3 and 4, which the shell puts there
        script = f'exec "$@" 3<&{theirs} 4>&{ours}'
        command = [
            "bash",
            "-c",
            script,
            "bash",
            path,
            *QUIET,
            f"--user-data-dir={self.profile.name}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            command,
            pass_fds=(theirs, ours),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self.buffer, self.number = b"", 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        (page, *_) = [one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self.session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{part}.enable")

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

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that come in between are kept."""
        self.number += 1
        message = {
            "id": self.number,
            "method": method,
            "params": parameters,
            **({"sessionId": self.session} if self.session else {}),
        }
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
        told: dict[str, Any] = json.loads(line)
        if "method" in told:
            self.events.append(told)
        return told

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file at a width, in a colour scheme, and wait until it is there."""
        self.size(width, height)
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(one["method"] == "Page.loadEventFired" for one in self.events):
            self._next(60)
        self.settle()

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the window."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def settle(self) -> None:
        """Wait until what is due has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return errors and warnings of the page since it was opened, and whatever it asked the network for."""
        said = []
        for one in self.events:
            told = one["params"]
            if one["method"] == "Runtime.exceptionThrown":
                said.append(str(told["exceptionDetails"]))
            elif one["method"] == "Runtime.consoleAPICalled" and told["type"] in (
                "error",
                "warning",
                "assert",
            ):
                said.append(str(told["args"]))
            elif one["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                said.append(str(told["entry"]))
            elif one["method"] == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
                ("file:", "data:")
            ):
                said.append(f"asked for {told['request']['url']}")
        return said

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.ask(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key]
                )
        self.settle()

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save what is shown as a PNG file."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
