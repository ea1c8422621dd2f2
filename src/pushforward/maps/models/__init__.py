"""Models made of in-context maps that are more than push-forwards."""

from ._learned_rule import LearnedRule
from ._noise_source import NoiseSource
from ._reweighted import Reweighted

__all__ = ["LearnedRule", "NoiseSource", "Reweighted"]
