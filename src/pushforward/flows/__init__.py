"""Flows of measures: Vlasov equations as in-context maps, their paths, Gaussian solutions."""

from . import fields as fields
from ._dynamics import Dynamics as Dynamics, FlowError as FlowError
from ._flow import Flow as Flow, flow as flow
from ._gaussians import GaussianPath as GaussianPath, gaussian as gaussian
from ._gradients import Adjoint as Adjoint, Backprop as Backprop, Gradients as Gradients
from ._observables import (
    attention_entropy as attention_entropy,
    clusters as clusters,
    diameter as diameter,
    leaders as leaders,
    order as order,
    radius as radius,
)
from ._path import Path as Path
from ._solvers import (
    RK4 as RK4,
    Dopri5 as Dopri5,
    Euler as Euler,
    FixedStep as FixedStep,
    LieSplit as LieSplit,
    Midpoint as Midpoint,
    RungeKutta as RungeKutta,
    Solver as Solver,
)
from ._studies import Study as Study, depth_study as depth_study, token_study as token_study
from .fields import Euclidean as Euclidean, Manifold as Manifold, Sphere as Sphere, Torus as Torus
