"""Makes the pictures of docs/pictures.md, as root and with Chromium: records a program, takes parts of its page.

python docs/pictures/make.py
"""

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from kit import chromium  # noqa: E402 - it lies in tests/kit

WIDTH, TALLEST = 860, 440
REPORT = ("whole", "timeline", "icicle", "workers")
READY = "document.documentElement?.dataset.ready === 'yes'"


def wstrace(*words, folder):
    subprocess.run([sys.executable, "-m", "wstrace", *words], check=True, cwd=folder)


def taken(browser, page, parts, *, dark=False, suffix=""):
    """Takes the parts of a page as PNG files."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.send("Emulation.setEmulatedMedia", features=[scheme])
    browser.open(f"file://{page}", READY)
    browser.send("Emulation.setDeviceMetricsOverride", width=WIDTH, height=1600, deviceScaleFactor=1, mobile=False)
    for part in parts:
        place = browser.value(
            f"(() => {{ scrollTo(0, 0); const one = document.querySelector('#{part}').getBoundingClientRect();"
            " return {x: one.left, y: one.top, width: one.width, height: one.height}; })()"
        )
        place["height"] = min(place["height"] + 4, TALLEST)
        shot = browser.send(
            "Page.captureScreenshot", format="png", clip={**place, "scale": 1}, captureBeyondViewport=True
        )
        (HERE / f"{part}{suffix}.png").write_bytes(base64.b64decode(shot["data"]))


def main():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        wstrace("run", "-q", "-o", "after.wst", "-s", "peak_snapshot", "--", sys.executable,
                str(HERE / "program.py"), "45000", folder=folder)  # fmt: skip
        wstrace("report", "after.wst", "--html", "report.html", folder=folder)
        with chromium.Chromium(Path(folder, "profile")) as browser:
            taken(browser, f"{folder}/report.html", REPORT)
            taken(browser, f"{folder}/report.html", ("timeline",), dark=True, suffix="-dark")


if __name__ == "__main__":
    main()
