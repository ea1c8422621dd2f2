"""Flows of measures: Vlasov equations as in-context maps, their paths, Gaussian solutions."""

from .gaussian import GaussianPath as GaussianPath, gaussian as gaussian
from .gradients import Adjoint as Adjoint, Backprop as Backprop, Gradients as Gradients
from .maps import Flow as Flow
from .path import Path as Path
from .run import flow as flow
