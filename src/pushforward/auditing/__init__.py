"""An audit of any model on sets: what kind of map is it?"""

from ._report import Audit as Audit, audit as audit
from ._section import Section as Section
