r"""The two reductions the library is built on; tensors in, tensors out.

$$\ell_i=\log\sum_j e^{s\langle q_i,k_j\rangle+b_j},\qquad
  o_i=\frac{\sum_j v_j\,e^{s\langle q_i,k_j\rangle+b_j}}{\sum_j e^{s\langle q_i,k_j\rangle+b_j}}.$$

A measure enters as log-weights inside the bias $b$, so a weighted, duplicated or padded atom needs
no special case: $b_j=-\infty$ is an atom without mass, and its key and value have no influence.
For a query that sees no mass, `log_integral` is $-\infty$, `average` is 0, and all gradients are
0.

Leading axes (batch, heads) broadcast. The bias is float32 or better, whatever the other dtypes.
`impl` picks an implementation of the same mathematics and never falls back; `None` chooses by
device and size.
"""

from .._tools.types import Clock
from ._radial import decaying_sum
from ._reductions import (
    IMPLS,
    Impl,
    average,
    choose,
    implementation,
    log_integral,
    runnable,
)

__all__ = [
    "IMPLS", "Clock", "Impl",
    "average", "choose", "decaying_sum", "implementation", "log_integral", "runnable",
]  # fmt: skip
