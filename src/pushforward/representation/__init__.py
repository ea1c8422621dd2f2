"""Which maps between measures are in-context maps: Theorem 1 of paper A, executable."""

from . import continuity as continuity, zoo as zoo
from ._black_box import (
    BlackBox as BlackBox,
    MapBox as MapBox,
    near as near,
    why_unusable as why_unusable,
)
from ._characterise import (
    Characterisation as Characterisation,
    LipschitzBounds as LipschitzBounds,
    Verdict as Verdict,
    characterise as characterise,
)
from ._derivatives import (
    Derivative as Derivative,
    Extension as Extension,
    MassPreserving as MassPreserving,
    ProbabilityValued as ProbabilityValued,
    derivative as derivative,
)
from ._errors import (
    BlackBoxError as BlackBoxError,
    CallRejected as CallRejected,
    NotRecovered as NotRecovered,
    call_model as call_model,
)
from ._measure_maps import Witness as Witness, rewritings as rewritings
from ._probes import Decode as Decode, Excess as Excess, Probe as Probe, Weak as Weak
from ._recovery import RecoveredMap as RecoveredMap, recover as recover
