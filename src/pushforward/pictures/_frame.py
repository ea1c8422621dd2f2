"""The frame of our pages: one stylesheet, one script, marks of a status, formulas."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files

STATUS = {
    "holds": "Holds",
    "open": "Not refuted",
    "refuted": "Refuted",
    "untried": "Not tried",
    "unable": "Could not be tried",
}
"""The five words of a page, by the class of their mark."""

SYMBOLS = """<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<symbol id="i-holds" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7.5" fill="currentColor"/>
<path d="M4.6 8.3l2.4 2.4 4.4-5" fill="none" stroke="var(--card)" stroke-width="2"/></symbol>
<symbol id="i-open" viewBox="0 0 16 16">
<circle cx="8" cy="8" r="6.4" fill="none" stroke="currentColor" stroke-width="2.2"/></symbol>
<symbol id="i-refuted" viewBox="0 0 16 16"><path d="M8 0l8 8-8 8-8-8z" fill="currentColor"/>
<path d="M5.6 5.6l4.8 4.8m0-4.8l-4.8 4.8" stroke="var(--card)" stroke-width="1.8"/></symbol>
<symbol id="i-untried" viewBox="0 0 16 16"><circle cx="8" cy="8" r="6.6" fill="none"
stroke="currentColor" stroke-width="1.8" stroke-dasharray="2.6 2.58"/></symbol>
<symbol id="i-unable" viewBox="0 0 16 16"><path d="M8 1.2L15.4 14.6H.6z" fill="none"
stroke="currentColor" stroke-width="1.9" stroke-linejoin="round"/>
<path d="M8 6v4.2M8 11.6v1.4" stroke="currentColor" stroke-width="1.8"/></symbol></defs></svg>"""


def frame(title: str, body: str) -> str:
    """A whole page that needs nothing else.

    Args:
        title: of the page.
        body: what is in `<main>`, as HTML.
    """
    assets = files(__package__) / "assets"
    css = re.sub(r"/\*.*?\*/|\n", "", (assets / "style.css").read_text("utf-8"))
    script = "".join((assets / name).read_text("utf-8") for name in ("page.js", "charts.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{css}</style></head>'
        f'<body><a class="skip" href="#main">Skip to the content</a>{SYMBOLS}\n'
        f'<div class="page"><div class="top"><p class="kicker">{escape(title)}</p>'
        '<button class="btn noprint" id="theme" type="button">Dark</button></div>'
        f'<main id="main">{body}</main></div>\n<script>{script}</script></body></html>\n'
    )


def mark(status: str) -> str:
    """The mark of a status."""
    return f'<svg viewBox="0 0 16 16" aria-hidden="true"><use href="#i-{status}"/></svg>'


def chip(status: str) -> str:
    """The mark and the word of a status."""
    return f'<span class="chip {status}">{mark(status)}{STATUS[status]}</span>'


def formula(latex: str) -> str:
    """A formula as MathML, which browsers draw themselves."""
    try:
        from latex2mathml.converter import convert
    except ImportError as error:
        raise ImportError("Pages need latex2mathml: `pip install latex2mathml`.") from error
    text = convert(latex, display="inline").replace(' display="inline"', "")
    text = re.sub(r' xmlns="[^"]*"', "", text)
    return text.replace("<math", f'<math alttext="{escape(latex, True)}"', 1)
