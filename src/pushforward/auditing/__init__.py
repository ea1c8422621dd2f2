"""Audits: what kind of map is a model on sets?"""

from ._model import Model as Model
from ._report import Audit as Audit
from ._run import audit as audit
from ._section import Section as Section
