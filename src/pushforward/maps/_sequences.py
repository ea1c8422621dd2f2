"""Sequence models as maps between measures."""

from collections.abc import Callable

from torch import Tensor

from .._tools.checks import check_callable, check_tensor, holds
from ..measures import Measure, MeasureMap, check_measures


def from_sequence_model(model: Callable[[Tensor], Tensor]) -> MeasureMap:
    r"""The map between measures of a sequence model $F$: $f\circ\iota=\iota\circ F$ [A, eq. 4].

    A sequence has equal weights, so measures must have them too; total mass is kept. Atoms of zero
    mass are not shown to the model, and each measure of a batch is shown alone.

    Args:
        model: maps `(n, d)` tokens to `(n, e)` tokens.

    Examples:
        >>> f = pf.from_sequence_model(lambda tokens: tokens - tokens.mean(0))
        >>> f(pf.Measure(torch.tensor([[1.0], [3.0]]))).atoms.flatten()
        tensor([-1.,  1.])
    """
    check_callable("model", model, "a module or a function of tokens")

    def f(mu: Measure) -> Measure:
        check_measures(mu=mu)
        if mu.batch_shape:
            return Measure.stack([f(m) for m in mu])
        mu = mu.strip()
        tokens, logs = mu.atoms, mu.log_weights
        spread = (logs.max() - logs.min()).detach()
        if not holds(spread <= 1e-5):
            raise ValueError(
                "A sequence model sees equal weights only, got weights that differ by a factor of "
                f"{spread.exp().item():g}. Draw equal ones with `mu.sample(n)`."
            )
        images = model(tokens)
        check_tensor("model(tokens)", images)
        if images.ndim != 2 or len(images) != len(tokens):
            raise ValueError(
                f"A sequence model returns one point for each token: expected ({len(tokens)}, e), "
                f"got {tuple(images.shape)}."
            )
        return Measure(images, log_weights=logs, times=mu.times)

    return f
