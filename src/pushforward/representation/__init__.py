"""Which maps between measures are in-context maps: Theorem 1 of paper A, executable."""

from . import boxes, continuity, zoo
from ._characterise import Characterisation, LipschitzBounds, Verdict, characterise
from ._derivatives import Derivative, Extension, MassPreserving, ProbabilityValued, derivative
from ._errors import BlackBoxError, CallRejected, NotRecovered, call_model
from ._measure_maps import Witness, refinements, rewritings
from ._population import Population
from ._probes import Decode, Excess, Probe, ProbedImage, Weak, flattened
from ._recovery import RecoveredMap, recover
from ._subset_sums import Decoding, decode
from .boxes import BlackBox, MapBox, QueryBox, TokenBox

__all__ = [
    "BlackBox", "BlackBoxError", "CallRejected", "Characterisation", "Decode", "Decoding",
    "Derivative", "Excess", "Extension", "LipschitzBounds", "MapBox", "MassPreserving",
    "NotRecovered", "Population", "ProbabilityValued", "Probe", "ProbedImage", "QueryBox",
    "RecoveredMap", "TokenBox", "Verdict", "Weak", "Witness", "boxes", "call_model",
    "characterise", "continuity", "decode", "derivative", "flattened", "recover",
    "refinements", "rewritings", "zoo",
]  # fmt: skip
