"""The frame of our pages: stylesheet and scripts, marks of a status, figures, formulas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

STATUS = {
    "holds": "Holds",
    "open": "Not refuted",
    "refuted": "Refuted",
    "untried": "Not tried",
    "unable": "Could not be tried",
}
"""The five words of a page, by the class of their mark."""

MEASURED = "measured"
"""Not a status: the mark of numbers without a claim."""

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
<path d="M8 6v4.2M8 11.6v1.4" stroke="currentColor" stroke-width="1.8"/></symbol>
<symbol id="i-measured" viewBox="0 0 16 16"><path d="M2 14V9m4 5V3m4 11V6m4 8V1"
stroke="currentColor" stroke-width="2.4" fill="none"/></symbol></defs></svg>"""

SHIFT = re.compile(r"(\^|(?<=\b[^\W\d_])_)(\{[^{}]*\}|[-−]?\d+(?:\.\d+)?(?:/\d+)?|[^\W\d_]+)")
"""A power or an index: `m^-0.5`, `R^{n+1}`, `x_i`."""

EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?)0*(\d+)(?!\w)")
"""A number such as `1.3e-15`."""


def frame(title: str, body: str, rail: str = "") -> str:
    """A whole page that needs nothing else.

    Args:
        title: of the page.
        body: what is in `<main>`, as HTML.
        rail: what stands beside it where there is room, and above it on a phone.
    """
    assets = files(__package__) / "assets"
    css = re.sub(r"/\*.*?\*/|\n", "", (assets / "style.css").read_text("utf-8"))
    main = f'<main id="main">{body}</main>'
    if rail:
        main = f'<div class="cols"><div class="rail">{rail}</div>{main}</div>'
    script = "".join((assets / name).read_text("utf-8") for name in ("page.js", "charts.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{css}</style></head>'
        f'<body><a class="skip" href="#main">Skip to the content</a>{SYMBOLS}\n'
        f'<div class="page"><div class="top"><p class="kicker">{escape(title)}</p>'
        '<button class="btn noprint" id="theme" type="button">Dark</button></div>'
        f"{main}</div>\n<script>{script}</script></body></html>\n"
    )


def mark(status: str) -> str:
    """The mark of a status."""
    return f'<svg viewBox="0 0 16 16" aria-hidden="true"><use href="#i-{status}"/></svg>'


def chip(status: str) -> str:
    """The mark and the word of a status, or of what is only measured."""
    word = STATUS.get(status, status.capitalize())
    return f'<span class="chip {status}">{mark(status)}{word}</span>'


def figure(data: Mapping[str, Any], name: str = "") -> str:
    """A figure with its title, its caption and its numbers; scripts of the page draw it.

    Args:
        data: the figure as plain data, as `Figure.to_dict` and `HeatMap.to_dict` make it.
        name: its name in the page, for links.
    """
    title, names = typeset(data["title"]), data.get("names", ())
    if len(names) > 1:
        options = (f'<option value="{k}">{escape(name)}</option>' for k, name in enumerate(names))
        title = f'<label>{title}, <select class="btn">{"".join(options)}</select></label>'
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # In single quotes, so that the many double quotes of JSON stay as short as they are.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")
    anchor = f' id="{escape(name, True)}"' if name else ""
    return (
        f"<figure{anchor}><p class=\"ft\">{title}</p><div data-figure='{text}'></div>"
        f"<figcaption>{typeset(data['caption'])}</figcaption>"
        '<details class="numbers"><summary>Numbers</summary><div class="wide" tabindex="0">'
        "</div></details></figure>"
    )


def typeset(text: str) -> str:
    r"""A sentence as HTML: `code` in backquotes, powers raised, 1e-15 as people write it.

    Args:
        text: the sentence. Whatever else is in it is shown as it is.

    Examples:
        >>> pf.pictures.typeset("Scales as m^-0.42 in R^48: `a < b`.")
        'Scales as m<sup>−0.42</sup> in R<sup>48</sup>: <code>a &lt; b</code>.'
    """
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # a quote without its pair is a quote
        parts[-2:] = [f"{parts[-2]}`{parts[-1]}"]
    for k in range(0, len(parts), 2):
        plain = EXPONENT.sub(_power, parts[k])
        plain = SHIFT.sub(_shifted, plain)
        plain = re.sub(r"\bW1\b", "W<sub>1</sub>", plain)
        plain = re.sub(r"(?<=\d) (?=[%×])|(?<=×) (?=\d)", "\u00a0", plain)
        parts[k] = re.sub(r"(?<=\d) (?=\d{3}\b)", "\u202f", plain)
    return "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(parts))


def _power(found: re.Match[str]) -> str:
    mantissa, sign, exponent = found.groups()
    if exponent == "0":
        return mantissa
    return f"{mantissa}\u00a0×\u00a010^{'-' if sign == '-' else ''}{exponent}"


def _shifted(found: re.Match[str]) -> str:
    tag = "sup" if found[1] == "^" else "sub"
    return f"<{tag}>{found[2].strip('{}').replace('-', '−')}</{tag}>"


def formula(latex: str) -> str:
    """A formula as MathML, which browsers draw themselves."""
    try:
        from latex2mathml.converter import convert
    except ImportError as error:
        raise ImportError("Pages need latex2mathml: `pip install latex2mathml`.") from error
    text = convert(latex, display="inline").replace(' display="inline"', "")
    text = re.sub(r' xmlns="[^"]*"', "", text)
    return text.replace("<math", f'<math alttext="{escape(latex, True)}"', 1)
