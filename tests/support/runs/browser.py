"""A real headless browser, controlled through its DevTools port: https://chromedevtools.github.io/devtools-protocol."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from tornado.websocket import websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 120.0
"""Time limit in seconds for a page to show what it should."""
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-port=0", "--disable-extensions", "--mute-audio", "--disable-default-apps",
)  # fmt: skip


class Browser:
    """A browser process, in which `tab` opens a tab. As a context manager, ends the process."""

    def __init__(self, folder):
        self._folder, self._loop = Path(folder), asyncio.new_event_loop()
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
        told = self._folder / "DevToolsActivePort"
        wait_for(lambda: told.exists() and "\n" in told.read_text(), "the browser's DevTools port")
        self._port = int(told.read_text().split("\n")[0])

    def tab(self, width=1280, height=900, dark=False):
        """Open an empty tab of this size."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request) as answer:
            target = json.load(answer)

        async def connect():
            return await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=1 << 28)

        socket = self._loop.run_until_complete(connect())
        return Tab(self._loop, socket, width, height, dark)

    def close(self):
        self._process.terminate()
        self._process.wait(30)
        self._loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Tab:
    """A tab: its content, its network requests, and its errors."""

    def __init__(self, loop, socket, width, height, dark):
        self._loop, self._socket, self._number, self._pending = loop, socket, 0, None
        self.errors, self.requests = [], []
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")
        self.resize(width, height, dark)

    def resize(self, width, height=900, dark=False):
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method, **values):
        """Call a method of the protocol and return its result."""
        self._number += 1
        number = self._number
        message = json.dumps({"id": number, "method": method, "params": values})

        async def send():
            await self._socket.write_message(message)

        self._loop.run_until_complete(send())
        while (message := self._read(PATIENCE)) is not None:
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
        raise TimeoutError(method)

    def _read(self, seconds):
        async def read():
            return await asyncio.wait_for(asyncio.shield(self._pending), seconds)

        self._pending = self._pending or self._loop.create_task(self._message())
        try:
            message = json.loads(self._loop.run_until_complete(read()))
        except TimeoutError:
            return None
        self._pending = None
        self._note(message)
        return message

    async def _message(self):
        text = await self._socket.read_message()
        assert text is not None, "the browser is gone"
        return text

    def _note(self, message):
        values = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                thrown = values["exceptionDetails"]
                self.errors.append(thrown.get("exception", {}).get("description", thrown["text"])[:300])
            case "Runtime.consoleAPICalled" if values["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in values["args"]))
            case "Log.entryAdded" if values["entry"]["level"] == "error":
                self.errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.errors.append(f"a dialog says {values['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])

    def rest(self, seconds):
        """Let the page run for some seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._read(left)

    def open(self, url):
        """Open a page and wait until it is there."""
        # Messages of the previous page about its own end do not count for this one.
        self.call("Page.navigate", url="about:blank")
        self.rest(0.2)
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    def value(self, expression):
        """Value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression):
        """Wait until a JavaScript expression is true."""

        def is_true():
            # There is nothing to ask while the page is loaded again.
            with suppress(AssertionError):
                return self.value(f"Boolean({expression})")

        wait_for(is_true, expression, self.rest)

    def text(self):
        """All visible text of the page."""
        return self.value("document.body.innerText")

    def elements(self):
        """Names of all elements of the page."""
        return self.value("[...document.querySelectorAll('body *')].map((e) => e.nodeName.toLowerCase())")

    def overflow(self):
        """Number of pixels by which the page is wider than its window."""
        return self.value("document.documentElement.scrollWidth - window.innerWidth")

    def screenshot(self, path):
        """Save a screenshot of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self._socket.close()


def wait_for(is_there, what, pause=time.sleep, seconds=PATIENCE):
    """Wait until `is_there` returns a true value, and return the value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := is_there():
            return found
        pause(0.1)
    raise TimeoutError(f"after {seconds:.0f} s still not there: {what}")
