"""Is there a continuous in-context map? The search for a point where there is none."""

from ._box import Box as Box, Law as Law
from ._candidates import (
    Candidates as Candidates,
    SearchBudget as SearchBudget,
    WidestGap as WidestGap,
)
from ._jumps import (
    GROWS as GROWS,
    PRECISION as PRECISION,
    Continuity as Continuity,
    Precision as Precision,
    continuity as continuity,
)
from ._search import RATIO as RATIO, Search as Search
from ._steepest import (
    Moves as Moves,
    Pair as Pair,
    Response as Response,
    measured as measured,
    steepest as steepest,
)
