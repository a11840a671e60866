"""Chromium without a window, driven by its DevTools protocol as a user drives it."""

import itertools
import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from websockets.sync.client import connect

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
NO_CHROMIUM = "no Chromium: apt-get install chromium, or name one in CHROMIUM"
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "Tab": 9}
"""Windows key codes, without which a page gets no default action such as moving the focus."""


def in_a_browser(test):
    has_no_chromium = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
    return pytest.mark.slow(has_no_chromium(test))


class Tab:
    """A tab of the browser."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count()

    def call(self, method, **parameters):
        """The result of a method of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, path, width=1280, ready=".attention[data-ready]"):
        """Open a page, and wait until it has the element, by default a drawn view of attention."""
        self.resize(width)
        self.call("Page.navigate", url=f"file://{path}")
        self.run(
            "new Promise((resolve) => { const wait = () => document.querySelector("
            f"{json.dumps(ready)}) ? resolve() : setTimeout(wait, 20); wait(); }})"
        )

    def resize(self, width, height=900):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def point(self, selector, *, click=False):
        """Move the mouse to the middle of an element, and click there."""
        x, y = self.run(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS[key])

    def select(self, name, value):
        """Choose the option of a selection box of the view."""
        self.run(
            f"(() => {{ const box = document.querySelector('.attention [name={name}]');"
            f"box.value = {json.dumps(str(value))};"
            "box.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")


@contextmanager
def open_tab(profile):
    """A tab of a new browser, which ends with the block."""
    options = "--headless --no-sandbox --disable-gpu --remote-debugging-port=0".split()
    command = [CHROMIUM, *options, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if match := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        with connect(match[1], max_size=None) as browser:
            tab = Tab(browser)
            target = tab.call("Target.createTarget", url="about:blank")["targetId"]
        address = re.sub("/devtools/.*", f"/devtools/page/{target}", match[1])
        with connect(address, max_size=None) as socket:
            yield Tab(socket)
    finally:
        process.kill()
        process.communicate()
