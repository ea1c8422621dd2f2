"""Flows of measures: Vlasov equations as in-context maps, their paths, Gaussian solutions."""

from . import fields
from ._dynamics import Dynamics, FlowError
from ._flow import Flow, flow
from ._gaussians import GaussianPath, gaussian
from ._gradients import Adjoint, Backprop, Gradients
from ._observables import attention_entropy, clusters, diameter, leaders, order, radius
from ._path import Path
from ._solvers import RK4, Dopri5, Euler, FixedStep, LieSplit, Midpoint, RungeKutta, Solver
from ._studies import Study, depth_study, token_study
from .fields import Euclidean, Manifold, Sphere, Torus

__all__ = [
    "Adjoint", "Backprop", "Dopri5", "Dynamics", "Euclidean", "Euler", "FixedStep", "Flow",
    "FlowError", "GaussianPath", "Gradients", "LieSplit", "Manifold", "Midpoint", "Path", "RK4",
    "RungeKutta", "Solver", "Sphere", "Study", "Torus", "attention_entropy", "clusters",
    "depth_study", "diameter", "fields", "flow", "gaussian", "leaders", "order", "radius",
    "token_study",
]  # fmt: skip
