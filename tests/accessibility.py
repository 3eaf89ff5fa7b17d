"""A browser for tests, and what axe says of the page it shows; where either is missing the test is skipped aloud."""

import warnings

import pytest

from lib import environments
from lib.errors import EngineError
from lib.show import browser

PATIENCE_S = 240.0  # axe reads every element, on a machine that may be busy


def unseen(why):
    """Skip, and say so where a quiet run is read too."""
    warnings.warn(why, stacklevel=3)
    pytest.skip(why)


def browser_or_skip(lost):
    """A browser, or a skip that says what is lost without one."""
    if browser.find() is None:
        unseen(f"NO BROWSER: {lost}; install one of {', '.join(browser.NAMES)}")
    return browser.Browser()


def slider_ms(tab):
    """Milliseconds that the page takes to answer each of 21 moves of a slider, sorted."""
    return sorted(tab.run("""[...Array(21).keys()].map((i) => {
      const slider = document.getElementById("ask-ttft_ms-slide"), from = performance.now();
      slider.value = 300 + 20 * i;
      slider.dispatchEvent(new Event("input"));
      return performance.now() - from;
    })"""))


def violations(tab):
    """Open all details of the page that is shown and return what axe finds, one line each."""
    try:
        axe = next(environments.ensure("axe").parents[1].glob("lib/python3*/site-packages/*/axe.min.js"))
    except EngineError as refusal:
        unseen(f"NO AXE: accessibility is not checked; {refusal}")
    patience, browser.PATIENCE_S = browser.PATIENCE_S, PATIENCE_S
    try:
        tab.run('for (const e of document.querySelectorAll("details")) e.open = true')
        tab.run(axe.read_text(encoding="utf-8") + "; 1")
        return tab.run("""axe.run(document, { resultTypes: ["violations"] })
          .then((r) => r.violations.map((v) => `${v.impact} ${v.id}: ${v.nodes[0].html.slice(0, 200)}`))""")
    finally:
        browser.PATIENCE_S = patience
