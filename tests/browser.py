"""A headless Chromium for tests: pages opened from files, clicked, typed into, and asked what they are.

It speaks the DevTools protocol through a pipe (JSON texts ended by a zero byte), which needs no package.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-sync", "--disable-quic", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_TIMEOUT_S = 60


class Page:
    """One tab. ``errors`` collects what the console would show in red, ``requests`` every address it asked for."""

    def __init__(self, process, to_browser, from_browser):
        self._process, self._to, self._from = process, to_browser, from_browser
        self._count, self._session, self._buffer = 0, None, b""
        self._events = []
        self.errors, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, path, fragment=""):
        """Load a file and wait until it has loaded; by way of an empty page, since a new fragment loads nothing."""
        for url in ("about:blank", path.as_uri() + fragment):
            self._events.clear()
            self.call("Page.navigate", url=url)
            while "Page.loadEventFired" not in self._events:
                self._note(self._receive())

    def ask(self, expression):
        """The value of a JavaScript expression; what it raises becomes a RuntimeError."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector):
        """A click of the mouse on the middle of an element."""
        x, y = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key, code, text=""):
        """A key, as the keyboard gives it."""
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def dark(self, is_dark):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _receive(self):
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"Chromium said nothing for {_TIMEOUT_S} s (exit code {self._process.poll()})")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, params = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextlib.contextmanager
def browser():
    """A page in a fresh Chromium with a profile of its own, gone afterwards."""
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="vkconv-chromium-", ignore_cleanup_errors=True) as profile:
        script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'  # the numbers that Chromium expects
        process = subprocess.Popen(
            ["bash", "-c", script, "chromium", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Page(process, write_commands, read_answers)
        finally:
            os.close(write_commands)
            os.close(read_answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
