"""A headless Chromium for tests of pages: what it shows at a width and in a scheme, what it says on its
console, what it fetches.
"""

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest

NEEDS = "tests in a browser need Debian's packages chromium and chromium-driver, and the extra dev"


class Browser:
    """A page in a window; ``driver`` is selenium's. Close it with :meth:`close`."""

    def __init__(self):
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService

        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (
            "--headless=new",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ):
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium refuses to run as root with it
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, ChromeService(shutil.which("chromedriver")))
        self.driver.set_script_timeout(120)  # axe on a large page

    def close(self) -> None:
        self.driver.quit()

    def show(
        self,
        page: Path,
        fragment: str = "",
        *,
        width: int = 1200,
        height: int = 900,
        dark: bool = False,
        still: bool = True,
    ) -> None:
        """Opens a page anew.

        Args:
            fragment: of the address, with its hash.
            dark: the reader prefers dark colours.
            still: the reader prefers that nothing moves.
        """
        # an address that differs in its fragment only would not be loaded again
        self._get("about:blank")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.media("screen", dark=dark, still=still)
        self._get(page.as_uri() + fragment)

    def _get(self, address: str) -> None:
        """Opens an address and waits until it is loaded."""
        # on a busy machine the driver takes the page before, which is complete, for this one
        self.driver.get(address)
        scheme = address.partition(":")[0]
        self.until(f"location.protocol === '{scheme}:' && document.readyState === 'complete'")

    def media(self, kind: str, *, dark: bool = False, still: bool = True) -> None:
        """Shows the page as on a "screen" or in "print"."""
        wishes = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def run(self, script: str, *arguments: object) -> object:
        """What a function body of the page returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: str) -> None:
        """Waits until an expression of the page is true, a minute at most."""
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, 60, poll_frequency=0.05)
        wait.until(lambda _: self.run(f"return {condition}"), f"still not: {condition}")

    def violations(self) -> list[str]:
        """What axe finds against the Web Content Accessibility Guidelines, levels A and AA, one line an
        element.
        """
        from axe_core_python.selenium import Axe

        rules = {
            "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
            "resultTypes": ["violations"],
        }
        found = Axe().run(self.driver, options=rules)["violations"]
        return [
            f"{rule['id']}: {node['html'][:160]} ({node['failureSummary']})"
            for rule in found
            for node in rule["nodes"]
        ]

    def said(self) -> list[str]:
        """What the console said since the last call, at any level."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def fetched(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


def open_browser() -> Browser:
    """A browser; the test is skipped where none is installed."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    missing += [name for name in ("selenium", "axe_core_python") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: {NEEDS}")
    return Browser()
