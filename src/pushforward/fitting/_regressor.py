"""Measure regression with the conventions of scikit-learn."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._tools.checks import (
    check_flags,
    check_kind,
    check_number,
    check_path,
    check_seed,
    check_sizes,
)
from ..distances import wasserstein
from ..maps import Block, Compose, Pointwise, PreNorm, Residual, Transformer
from ..measures import Measure, listed
from . import _regressor_files as files
from ._checkpoint import Row
from ._fit import fit
from ._training import Optimiser, Training
from .problems import FromPairs, Loss, SinkhornDivergence, Units, check_usable

ATOMS = 1 << 14
"""Atoms, with padding, that are predicted at once; a larger measure stands alone."""


class NotFittedError(ValueError):
    """A regressor is used before it was fitted."""


class MeasureRegressor:
    r"""A map between measures, learned from pairs: $\nu_k\approx\Gamma(\mu_k,\cdot)_\sharp\mu_k$.

    Measures may have any numbers of atoms, and weights. Source and target need not have equally
    many, since by default no atom of the target belongs to one of the source. Conditions, such as
    a dose or a time, are further inputs of the map.

    Points and conditions are standardised, each coordinate by its mean and standard deviation
    over the training data. Sources and targets of equal dimension share one scale. The network is
    then a `pf.Transformer` with a LayerNorm in each block that returns the displacement of an
    atom, and before training moves none. If the dimensions differ, it returns the image itself.
    All measures count with mass one.

    The methods are those of scikit-learn: `clone`, `Pipeline`, `GridSearchCV` and
    `cross_val_score` work on lists of measures. After `fit`, `model_` is the network on
    standardised points, `n_features_in_` the dimension of the sources, `n_conditions_` the number
    of conditions of a pair, and `log_` the lines of the log.

    Args:
        depth: blocks of the transformer.
        heads: attention heads of a block.
        width: dimension of the tokens inside.
        steps: steps of the optimiser, each on up to 16 pairs.
        loss: what is made small, in standardised units; `SinkhornDivergence()` by default.
            `Paired()` if atom $i$ of a target is the image of atom $i$ of its source.
        atoms: the most atoms of a measure in a step of training; larger measures are thinned out
            at random, anew in each step. Predictions use all atoms.
        lr: the largest learning rate.
        seed: everything random follows from it.

    Examples:
        >>> sources = [pf.Measure(torch.randn(n, 2)) for n in (20, 30, 25, 15)]
        >>> targets = [mu.push(lambda x: x + dose) for mu, dose in zip(sources, [1, 2, 3, 4])]
        >>> reg = pf.MeasureRegressor(depth=1, heads=1, width=16, steps=30, lr=0.05)
        >>> reg = reg.fit(sources, targets, conditions=[1, 2, 3, 4])
        >>> reg.predict(sources[:1], conditions=[2.5])
        [Measure(20 atoms in R^2, float32, cpu)]
        >>> reg.score(sources, targets, conditions=[1, 2, 3, 4]) > 0.5
        True
    """

    def __init__(
        self,
        depth: int = 4,
        heads: int = 4,
        width: int = 64,
        steps: int = 1000,
        loss: Loss | None = None,
        atoms: int = 128,
        lr: float = 2e-3,
        seed: int = 0,
    ) -> None:
        # As in scikit-learn, arguments are kept as they are, and `fit` checks them.
        self.depth = depth
        self.heads = heads
        self.width = width
        self.steps = steps
        self.loss = loss
        self.atoms = atoms
        self.lr = lr
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor by their names, as scikit-learn reads them.

        Args:
            deep: has no effect, since no argument is an estimator.
        """
        check_flags(deep=deep)
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> MeasureRegressor:
        """Change arguments of the constructor; what was fitted stays.

        Args:
            **params: new values by name.
        """
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(
                    f"MeasureRegressor has no argument `{name}`. It has: {', '.join(known)}."
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(
        self, sources: Iterable[Measure], targets: Iterable[Measure], conditions: Any = None
    ) -> MeasureRegressor:
        r"""Learn the map from pairs of measures.

        Args:
            sources: the $\mu_k$, in a list.
            targets: the $\nu_k$, as many.
            conditions: one number, or one vector of numbers, for each pair.
        """
        params = self._checked_params()
        loss = SinkhornDivergence() if params.loss is None else params.loss
        mus, nus = measures("sources", sources), measures("targets", targets)
        _check_pairs(mus, nus, loss)
        values = _numbers(conditions, len(mus))
        units = Units.of(mus, nus, values)
        training = Training(loss=loss, optimiser=Optimiser(lr=params.lr), seed=params.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(params.seed)
            model = _network(params, units)
            dtype = next(model.parameters()).dtype
            images = [units.end.standardised(nu) for nu in nus]
            pairs = [
                (units.input(mu, values, k).to("cpu", dtype), image.to("cpu", dtype))
                for k, (mu, image) in enumerate(zip(mus, images, strict=True))
            ]
            task = FromPairs(pairs, loss, atoms=params.atoms)
            result = fit(model, task, steps=params.steps, training=training)
        self._fitted(units, result.model, result.log)
        return self

    @torch.no_grad()
    def predict(self, new: Iterable[Measure], conditions: Any = None) -> list[Measure]:
        """The images of measures, which keep their weights.

        Measures of like sizes are predicted together, and no more at once than memory is made
        for.

        Args:
            new: measures of the space of the sources, in a list.
            conditions: one number, or one vector of numbers, for each, if there were any in
                training.
        """
        self._check_fitted()
        mus = measures("new", new)
        if mus[0].dim != self.n_features_in_:
            raise ValueError(
                f"`new` must be measures in R^{self.n_features_in_} like the sources, got "
                f"measures in R^{mus[0].dim}."
            )
        values, units = self._known_conditions(conditions, len(mus)), self._units
        weight = next(self.model_.parameters())
        found: dict[int, Measure] = {}
        for chunk in _chunks([mu.n for mu in mus]):
            inputs = [units.input(mus[k], values, k) for k in chunk]
            batch = Measure.stack([mu.to(weight.device, weight.dtype) for mu in inputs])
            images = units.end.back(self.model_.push(batch).atoms)
            for k, image in zip(chunk, images, strict=True):
                mu = mus[k]
                found[k] = mu.moved(image[: mu.n].to(mu.device, mu.dtype))
        return [found[k] for k in range(len(mus))]

    def score(
        self, sources: Iterable[Measure], targets: Iterable[Measure], conditions: Any = None
    ) -> float:
        r"""How much of the way from the sources to the targets is predicted, at most 1.

        $$1-\sum_kW_1(\hat\nu_k,\nu_k)\Big/\sum_kW_1(\mu_k,\nu_k)$$

        of the normalised measures. Predicting the sources themselves scores 0. The distance is
        exact, and takes seconds for measures of thousands of atoms.

        Args:
            sources: the $\mu_k$, in a list.
            targets: the true $\nu_k$.
            conditions: as in `predict`.
        """
        self._check_fitted()
        mus, nus = measures("sources", sources), measures("targets", targets)
        _check_pairs(mus, nus)
        if mus[0].dim != nus[0].dim:
            raise ValueError(
                f"`targets` must be measures in R^{mus[0].dim} like the sources, got measures in "
                f"R^{nus[0].dim}: between different spaces there is no distance to compare with. "
                "Compare predictions with `pf.wasserstein`."
            )
        images = self.predict(mus, conditions)
        error, way = (
            sum(float(wasserstein(plain(a), plain(nu))) for a, nu in zip(start, nus, strict=True))
            for start in (images, mus)
        )
        if way == 0:
            raise ValueError(
                "`targets` must differ from the sources, got the same measures: there is no way "
                "of which a share could be predicted."
            )
        return 1 - error / way

    def save(self, folder: str | os.PathLike) -> None:
        """Write the fitted regressor to a folder: model.safetensors and regressor.json.

        Args:
            folder: the folder; it is made if it is not there, and an older regressor in it is
                replaced.
        """
        check_path("folder", folder)
        self._check_fitted()
        files.write(Path(folder), self.model_, self.get_params(), self._units._asdict(), self.log_)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> MeasureRegressor:
        """The regressor that `save` wrote; nothing in the files is executed.

        Args:
            folder: the folder.
        """
        check_path("folder", folder)
        kept = files.read(Path(folder), set(inspect.signature(cls).parameters))
        self = cls(**kept.params)
        try:
            self._checked_params()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{Path(folder) / files.ABOUT} is damaged: {error}") from None
        self._fitted(Units(**kept.scales), kept.model, kept.log)
        return self

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        given = inspect.signature(type(self)).parameters.items()
        told = [f"{k}={getattr(self, k)!r}" for k, p in given if getattr(self, k) != p.default]
        return f"MeasureRegressor({', '.join(told)})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know of an estimator; only it calls this."""
        from sklearn.utils import RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True),
            regressor_tags=RegressorTags(),
        )

    def _checked_params(self) -> SimpleNamespace:
        """The arguments of the constructor, if they are right, with plain numbers of Python."""
        p = SimpleNamespace(**{k: files.python(v) for k, v in self.get_params().items()})
        check_sizes(depth=p.depth, heads=p.heads, width=p.width, steps=p.steps, atoms=p.atoms)
        if p.width % p.heads:
            raise ValueError(
                f"`width` must be a multiple of the number of heads, {p.heads}, got {p.width}."
            )
        if p.loss is not None:
            check_kind("loss", p.loss, Loss, "For example `pf.fitting.Paired()`.")
        check_number("lr", p.lr)
        check_seed(p.seed)
        return p

    def _fitted(self, units: Units, model: Any, log: list[Row]) -> None:
        """Keep what was learned, or read."""
        self._units, self.model_, self.log_ = units, model, log
        self.n_features_in_ = len(units.start.mean)
        self.n_conditions_ = 0 if units.conditions is None else len(units.conditions.mean)

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(
                "This MeasureRegressor is not fitted yet. Call `fit(sources, targets)` first."
            )

    def _known_conditions(self, conditions: Any, count: int) -> Tensor | None:
        """Conditions for a prediction, like those of training."""
        values, wanted = _numbers(conditions, count), self.n_conditions_
        got = 0 if values is None else values.shape[1]
        if got != wanted:
            words = lambda n: f"{n} number{'s' if n > 1 else ''} for each measure" if n else "None"
            raise ValueError(
                f"`conditions` must be {words(wanted)}, as in training, got {words(got)}."
            )
        return values


def _network(params: SimpleNamespace, units: Units) -> nn.Module:
    """The network on standardised points, each followed by the condition."""
    out, extra = len(units.end.mean), units.conditions
    dim = len(units.start.mean) + (0 if extra is None else len(extra.mean))
    same = len(units.start.mean) == out
    net = Transformer(
        dim, depth=params.depth, heads=params.heads, width=params.width,
        out_dim=dim if same else out, block=Block(norm=PreNorm()),
    )  # fmt: skip
    if not same:
        return net
    for p in list(net)[-1].parameters():
        nn.init.zeros_(p)  # no atom moves before training
    if dim == out:
        return Residual(net)
    first = nn.Linear(dim, out, bias=False).requires_grad_(False)
    nn.init.eye_(first.weight)  # the image without its condition
    return Compose(Residual(net), Pointwise(first, dim=dim, out_dim=out))


def measures(name: str, given: Any) -> list[Measure]:
    """A list of measures of one space, each with finite atoms and some mass."""
    if isinstance(given, Measure) and not given.batch_shape:
        raise TypeError(f"`{name}` must be a list of measures, got one measure. Write `[mu]`.")
    every = listed(name, given)
    for k, mu in enumerate(every):
        what = f"`{name}[{k}]`"
        check_kind(what.strip("`"), mu, Measure, "Make one with `pf.Measure(points)`.")
        if mu.batch_shape:
            raise ValueError(f"{what} must be one measure, got a batch of shape {mu.batch_shape}.")
        check_usable(**{f"{name}[{k}]": mu})
        if mu.dim != every[0].dim:
            raise ValueError(
                f"{what} must be in R^{every[0].dim} like `{name}[0]`, got a measure in "
                f"R^{mu.dim}."
            )
    return every


def plain(mu: Measure) -> Measure:
    """A measure of mass one in float64, to compute distances."""
    return Measure.unchecked(mu.atoms.double(), mu.log_weights.double()).normalise()


def _check_pairs(mus: list[Measure], nus: list[Measure], loss: Loss | None = None) -> None:
    """Raise unless there is one target for each source, fit for the loss."""
    if len(mus) != len(nus):
        raise ValueError(
            f"`targets` must hold one measure for each of the {len(mus)} sources, got {len(nus)}."
        )
    if loss is None or not loss.paired:
        return
    for k, (mu, nu) in enumerate(zip(mus, nus, strict=True)):
        if mu.n != nu.n:
            raise ValueError(
                f"`targets[{k}]` must have {mu.n} atoms like its source, because {loss} compares "
                f"atoms one by one, got {nu.n}. Leave `loss` out for targets whose atoms do not "
                "belong to those of the source."
            )


def _numbers(conditions: Any, count: int) -> Tensor | None:
    """Conditions as one row of numbers for each measure."""
    if conditions is None:
        return None
    must = f"`conditions` must be one number, or one vector, for each of the {count} measures"
    tensor = isinstance(conditions, Tensor)
    given = conditions.detach().cpu().double().numpy() if tensor else conditions
    try:
        values = torch.from_numpy(np.array(given, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{must}, got {type(conditions).__name__} of something else.") from None
    if values.ndim not in (1, 2) or len(values) != count or 0 in values.shape:
        raise ValueError(f"{must}, got shape {tuple(values.shape)}.")
    if not values.isfinite().all():
        raise ValueError(f"{must}, got NaN or inf.")
    return values.reshape(count, -1)


def _chunks(sizes: list[int]) -> Iterator[list[int]]:
    """Indices of measures that are predicted together, of like sizes."""
    chunk: list[int] = []
    for k in sorted(range(len(sizes)), key=sizes.__getitem__):
        if chunk and (len(chunk) + 1) * sizes[k] > ATOMS:
            yield chunk
            chunk = []
        chunk.append(k)
    yield chunk
