"""The parts of an audit: each asks one question of a model."""

from ._depth import depth as depth
from ._relations import relations as relations
from ._sensitivity import sensitivity as sensitivity
from ._size import size as size
from ._symmetries import symmetries as symmetries
from ._theorem import theorem as theorem
