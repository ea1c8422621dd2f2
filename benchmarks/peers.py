"""What others compute of the same, for the kernel benchmark; what is not installed is named."""

import math
import os
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import sinkhorn
import torch
from measuring import Call, relative
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention as sdpa

MODULES = {
    "KeOps": "pykeops",
    "POT": "ot",
    "GeomLoss": "geomloss",
    "OTT-JAX": "ott",
    "flash-sinkhorn": "flash_sinkhorn",
}
"""The module of each package."""

MANY = 8192
"""Up to so many points others store all pairs."""


def installed(name):
    """Whether one of the packages is."""
    return find_spec(MODULES[name]) is not None


def absent(*names):
    """Those of the packages that are not installed."""
    return {n: "not installed" for n in names if not installed(n)}


def centred(g):
    """Potentials are known up to a constant."""
    return g - g.mean(-1, keepdim=True)


def averages(q, k, v, bias, scale):
    """Averages of others by name; the name says where there are no weights, or as a mask."""
    n, d = q.shape[-2:]
    batched = [t[None] for t in (q, k, v)]
    mask = bias[:, None].to(q.dtype).expand(1, len(q), n, n)
    masked = lambda: sdpa(*batched, attn_mask=mask, scale=scale)
    plain = lambda: sdpa(*batched, scale=scale)
    keops = {"KeOps": keops_average(q, k, v, bias, scale)} if installed("KeOps") else {}
    if not q.is_cuda:
        found = {
            "SDPA, weights as a mask": masked,
            "SDPA, weights inside keys": inside_keys(q, k, v, bias, scale),
            "SDPA without weights": plain,
        }
        if n <= MANY:
            found["matrices"] = lambda: ((q * scale) @ k.mT + bias[:, None]).softmax(-1) @ v
        return found | keops
    if q.dtype == torch.float32:
        # It takes widths that are multiples of four.
        wide = lambda: sdpa(*(pad(t, (0, -d % 4)) for t in batched), attn_mask=mask, scale=scale)
        efficient = with_backend(lambda: wide()[..., :d], SDPBackend.EFFICIENT_ATTENTION)
        return {"SDPA efficient, weights as a mask": efficient} | keops
    return {
        "SDPA cuDNN without weights": with_backend(plain, SDPBackend.CUDNN_ATTENTION),
        "SDPA flash without weights": with_backend(plain, SDPBackend.FLASH_ATTENTION),
        "FlexAttention": flexible(batched, bias, scale),
    }


def log_integrals(q, k, bias, scale):
    """Log-sum-exps of others by name."""
    found = {}
    if q.shape[-2] <= MANY:
        found["matrices"] = lambda: ((q * scale) @ k.mT + bias[:, None]).logsumexp(-1)
    if installed("KeOps"):
        found["KeOps"] = keops_log_integral(q, k, bias, scale)
    return found


def inside_keys(q, k, v, bias, scale):
    """SDPA of queries and keys with one more coordinate, whose product is the log-weight."""

    def run():
        ones = torch.ones_like(q[..., :1])
        keys = torch.cat([k, bias[..., None] / scale], -1)
        values = torch.cat([v, ones], -1)  # as wide as the others, or no fast kernel takes them
        return sdpa(torch.cat([q, ones], -1)[None], keys[None], values[None], scale=scale)[
            0, ..., : v.shape[-1]
        ]

    return run


def with_backend(call, backend):
    """A call for which SDPA has one backend only."""

    def run():
        with sdpa_kernel(backend):
            return call()

    return run


def flexible(batched, bias, scale):
    """FlexAttention with the log-weights added to the scores."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def add(score, b, h, i, j):
        return score + bias[0, j]

    return lambda: compiled(*batched, score_mod=add, scale=scale)


def keops_scores(q, k, bias, scale):
    """Scores of one head as KeOps has them, and where it reduces them.

    It compiles a formula once and keeps it. Without a dimension for heads it has faster code.
    """
    folder = Path(tempfile.gettempdir()) / "keops"  # a home may not be writable
    os.environ.setdefault("KEOPS_CACHE_FOLDER", str(folder))
    from pykeops.torch import LazyTensor

    products = LazyTensor(scale * q[0, :, None]) | LazyTensor(k[0, None])
    place = {"dim": 1, "backend": "GPU" if q.is_cuda else "CPU"}
    return products + LazyTensor(bias[0, None, :, None]), place


def keops_average(q, k, v, bias, scale):
    def run():
        scores, place = keops_scores(q, k, bias, scale)
        return scores.sumsoftmaxweight(type(scores)(v[0, None]), **place)[None]

    return run


def keops_log_integral(q, k, bias, scale):
    def run():
        scores, place = keops_scores(q, k, bias, scale)
        return scores.logsumexp(**place)[None, :, 0]

    return run


SOLVERS = {
    "POT sinkhorn": "POT",
    "POT sinkhorn_log": "POT",
    "POT lazy": "POT",
    "GeomLoss": "GeomLoss",
    "GeomLoss online": "GeomLoss",
    "OTT dense": "OTT-JAX",
    "OTT online": "OTT-JAX",
}
"""Solvers of `sinkhorn.make` by the package they are from."""


def solvers(given, exact=None, tol=None, steps=None, without=()):
    """Others' solvers of a problem, to a tolerance or with a number of steps.

    The error is that of the potential of the second cloud, where `exact` is given, and else that
    of the marginals. Solvers in `without` are left out.
    """
    found = {}
    for name, package in SOLVERS.items():
        if name in without or not installed(package):
            continue
        anneals = package == "GeomLoss" and steps is not None
        if name == "GeomLoss online" and (anneals or not installed("KeOps")):
            continue  # the other one takes KeOps if it can
        # What fails when it is set up fails as a call does.
        made = cache(lambda name=name: sinkhorn.make(name, given, tol, steps))

        def off(out, made=made, anneals=anneals):
            f, g, _ = made()[1](out)
            if anneals:
                return math.nan
            return sinkhorn.error(given, f, g) if exact is None else far(g, exact)

        words = f"{name}, annealed, averaged steps" if anneals else name
        call = Call(lambda made=made: made()[0](), (), off, package != "OTT-JAX")
        found[words] = call
    return found


def far(g, exact):
    """How far a potential is from the exact one, up to a constant."""
    return relative(centred(g.to(exact)), exact)


def flash_sinkhorn(given, exact, steps):
    """Steps by Triton, with products in float32 and rounded."""
    if not (given.x.is_cuda and installed("flash-sinkhorn")):
        return {}

    def make(rounded):
        from flash_sinkhorn import SamplesLoss

        return SamplesLoss(
            backend="alternating", use_epsilon_scaling=False, eps=given.eps, n_iters=steps,
            allow_tf32=rounded, potentials=True, last_extrapolation=False,
        )  # fmt: skip

    found = {}
    for words, rounded in (("", False), (", rounded to TF32", True)):
        loss = cache(lambda rounded=rounded: make(rounded))
        theirs = lambda loss=loss: loss()(given.a, given.x, given.b, given.y)[1]
        found[f"flash-sinkhorn{words}"] = Call(theirs, (), lambda g: far(g / given.eps, exact))
    return found


def pot_batch(logits, tol):
    """Plain steps on many small matrices at once until all are done, or a thousand."""
    if not installed("POT"):
        return {}
    ones = torch.ones_like(logits[..., 0])

    def run():
        from ot.batch import bregman_log_projection_batch as project

        return project(logits, ones, ones, max_iter=1000, tol=tol)["T"]

    return {"POT batch": run}
