"""Turn the formulas of a page into MathML while the site is built.

Pages then need neither scripts nor the network to show formulas.
"""

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
    "<mi>&#x000B1;</mi>": "<mo>&#x000B1;</mo>",
    "<mo>&#x0002F;</mo>": '<mo lspace="0" rspace="0">/</mo>',
}
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")  # the glyph is raised
NAME = re.compile(r"<mo>(sign|div|osc|diam)</mo>")  # a function, without the spaces of an operator


def on_page_content(content, **_):
    """Replace every formula; one that cannot be converted stops the build."""
    return FORMULA.sub(_mathml, content)


def _mathml(match):
    latex = re.sub(r"\\(mathbb|mathcal) (\w)", r"\\\1{\2}", html.unescape(match[2]).strip())
    display = match[1] == "div"
    result = convert(latex, display="block" if display else "inline")
    for plain, better in POLISH.items():
        result = result.replace(plain, better)
    result = PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0.1em">&#x02032;</mo></mrow>', result)
    result = NAME.sub(r"<mi>\1</mi>", result)
    return f'<div class="formula">{result}</div>' if display else result
