"""The shapes of tensors that several chapters share.

Axes have the same letters everywhere: `*b` batch, `h` heads, `n` atoms or keys, `m` queries,
`d` space, `k` features of an affinity, `e` values. `*#b` broadcasts.
"""

from jaxtyping import Float, Num
from torch import Tensor

Points = Float[Tensor, "*b n d"]
"""Atoms of a measure."""

Weights = Float[Tensor, "*b n"]
"""One number per atom: a weight, a log-weight, a potential."""

Times = Num[Tensor, "*b n"]
"""One time per atom."""

Queries = Float[Tensor, "*q m d"]
"""Points at which an in-context map is evaluated; their batch broadcasts with the context's."""

Images = Float[Tensor, "*o m e"]
"""One vector per query: an average of values, or the value of an in-context map."""

Bias = Float[Tensor, "*#b n"]
"""What is added to all scores of a key: its log-weight, perhaps plus a potential."""

Values = Float[Tensor, "*#b n e"]
"""One vector per key, to be averaged."""

Clock = tuple[Num[Tensor, "*#b m"], Num[Tensor, "*#b n"]]
r"""Times of queries and of atoms: a query at time $t$ sees the atoms at times $s\le t$."""
