"""Which maps between measures are in-context maps: Theorem 1, executable."""

from . import continuity as continuity, zoo as zoo
from ._black_box import BlackBoxError as BlackBoxError, called as called, guarded as guarded
from ._characterise import (
    UNKNOWN as UNKNOWN,
    Characterisation as Characterisation,
    characterise as characterise,
)
from ._derivatives import (
    Derivative as Derivative,
    MassPreserving as MassPreserving,
    ProbabilityValued as ProbabilityValued,
    derivative as derivative,
    regular_derivative as regular_derivative,
)
from ._probes import (
    Automatic as Automatic,
    Decode as Decode,
    Excess as Excess,
    Probe as Probe,
    Weak as Weak,
)
from ._recovery import RecoveredMap as RecoveredMap, recover as recover
from ._views import manifold_of as manifold_of
