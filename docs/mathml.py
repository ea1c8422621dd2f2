"""Turn the formulas of a page into MathML while the site is built: no script, no network."""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*\\(?:\(|\[)(.*?)\\(?:\)|\])\s*</(?:span|div)>', re.S
)
POLISH = {
    '<mo stretchy="false">&#x0007C;</mo>': '<mo stretchy="false" lspace="0" rspace="0">|</mo>',
    "<mi>log</mi>": '<mi>log</mi><mspace width="0.17em"/>',
    "<mo>&#x0221E;</mo>": "<mi>&#x0221E;</mi>",
}


def on_page_content(content, **_):
    """Replace every formula; one that cannot be converted stops the build."""
    return FORMULA.sub(_mathml, content)


def _mathml(match):
    latex = re.sub(r"\\(mathbb|mathcal) (\w)", r"\\\1{\2}", html.unescape(match[2]).strip())
    result = convert(latex, display="block" if match[1] == "div" else "inline")
    for plain, better in POLISH.items():
        result = result.replace(plain, better)
    return result
