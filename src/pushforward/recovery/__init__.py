"""Theorem 1, executable: the in-context map of a black box, and the derivative that shows it."""

from .black_box import BlackBoxError as BlackBoxError
from .decoding import decode as decode
from .derivatives import (
    Derivative as Derivative,
    MassPreserving as MassPreserving,
    ProbabilityValued as ProbabilityValued,
    derivative as derivative,
    regular_derivative as regular_derivative,
)
from .probes import (
    Automatic as Automatic,
    Decode as Decode,
    Excess as Excess,
    Probe as Probe,
    Weak as Weak,
)
from .recovered import RecoveredMap as RecoveredMap, recover as recover
