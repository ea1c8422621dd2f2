"""Muon for many small matrices: those of one shape are moved together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = 3.4445, -4.775, 2.0315
"""Coefficients of the quintic, which is steep at 0 and stays near 1 (Jordan et al., 2024)."""

STEPS, MOMENTUM, LEAST = 5, 0.95, 1e-7


class Muon(torch.optim.Optimizer):
    r"""A step along the momentum of a matrix, whose singular values are all replaced by about 1.

    It does what `torch.optim.Muon` does with Nesterov's momentum and `"match_rms_adamw"`: the
    step $0.2\sqrt{\max(m,n)}\,UV^\top$ has the size of AdamW's, so that learning rates compare.
    PyTorch's goes from matrix to matrix, some fifty small kernels for each. Here matrices of one
    shape share them, which takes a third of a training step of six blocks on a GPU away.

    Args:
        matrices: what is moved.
        lr: the learning rate.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; no closure is called.

        Args:
            closure: not used.
        """
        for group in self.param_groups:
            alike = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[p.shape].append(p)
            for shape, matrices in alike.items():
                updates = orthogonalised(torch.stack(self._momenta(matrices)))
                size = group["lr"] * 0.2 * math.sqrt(max(shape))
                torch._foreach_add_(matrices, list(updates.to(matrices[0].dtype)), alpha=-size)

    def _momenta(self, matrices: list[nn.Parameter]) -> list[Tensor]:
        """Nesterov's momentum of each matrix, which becomes the new one."""
        gradients = [p.grad for p in matrices if p.grad is not None]
        for p in matrices:
            self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        kept = [self.state[p]["momentum_buffer"] for p in matrices]
        torch._foreach_lerp_(kept, gradients, 1 - MOMENTUM)
        return list(torch._foreach_lerp(gradients, kept, MOMENTUM))


def orthogonalised(matrices: Tensor) -> Tensor:
    r"""About $UV^\top$ for each matrix $USV^\top$, by five steps of Newton and Schulz in bfloat16.

    Args:
        matrices: one after the other.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(LEAST)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
