"""Is there a continuous in-context map? The search for a place where there is none."""

from ._calls import BlackBox as BlackBox, Caller as Caller
from ._constants import Pair as Pair, quotient as quotient, steepest as steepest
from ._jumps import (
    GROWS as GROWS,
    PRECISION as PRECISION,
    Continuity as Continuity,
    Precision as Precision,
    continuity as continuity,
)
from ._search import (
    RATIO as RATIO,
    Box as Box,
    Effort as Effort,
    Herd as Herd,
    Law as Law,
    Search as Search,
    Ticker as Ticker,
)
