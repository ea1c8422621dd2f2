"""What kind of map is it? Sanity, measure map, supports, continuity, and Lipschitz constants."""

from .report import Characterisation as Characterisation, characterise as characterise
