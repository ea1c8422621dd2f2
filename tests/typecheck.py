"""The run-time checker of shapes and types, used in tests only: an int passes for a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
