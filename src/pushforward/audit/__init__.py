"""An audit of any model on sets: what kind of map is it?"""

from .report import Audit as Audit, audit as audit
from .section import Section as Section
