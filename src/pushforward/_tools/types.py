"""The shape glossary: every tensor in the library is one of these.

Axes are the same letters everywhere: `*b` batch, `h` heads, `n` atoms, `m` queries,
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
"""What an in-context map makes of queries: one point for each, perhaps in another space."""
