r"""Black boxes: maps that are only called.

One interface for recovery, characterisation and audits, whatever the map takes: measures
(`MapBox`), lists of tokens (`TokenBox`), or a context and queries (`QueryBox`).
"""

from ._black_box import BlackBox, answer_distance, image_distance, outputs_at, why_unusable
from ._calls import as_tensor, finite, near, output_name
from ._maps import MapBox, check_map
from ._queries import QueryBox
from ._tokens import TokenBox, repetitions

__all__ = [
    "BlackBox", "MapBox", "QueryBox", "TokenBox", "answer_distance", "as_tensor", "check_map",
    "finite", "image_distance", "near", "output_name", "outputs_at", "repetitions",
    "why_unusable",
]  # fmt: skip
