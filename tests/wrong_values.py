"""Values of a wrong kind for an argument, and what is accepted in spite of its kind."""

import inspect
import math
from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pushforward as pf

HAS_DEVICE = Tensor | pf.Measure


def nothing(*arguments: Any) -> None:
    """A function that returns nothing."""


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor | pf.Measure) and value.dtype.is_floating_point


def wrong_values(call: Any, given: dict[str, Any], argument: str) -> Iterator[tuple[str, Any]]:
    """Values that are wrong for an argument of a valid call, by kind."""
    right = given[argument]
    plain = isinstance(right, Tensor) and not right.is_nested
    shape = right.shape if plain else (3, 2)
    if not isinstance(right, PathLike):
        yield "a string", "wrong"
    yield "a list", [object()]
    yield "an array", np.ones(shape)
    if not (isinstance(right, Tensor) and not right.is_floating_point()):
        yield "integers", torch.ones(shape, dtype=torch.int64)
        yield "NaN tensor", torch.full(shape, math.nan, dtype=torch.float64)
    yield "an empty tensor", torch.empty(0, dtype=torch.float64)
    yield "a tensor without axes", torch.tensor(1.0, dtype=torch.float64)
    if is_floating(right) and sum(map(is_floating, given.values())) > 1:
        yield "another dtype", right.to(torch.float32)
    if isinstance(right, Tensor) and sum(isinstance(v, HAS_DEVICE) for v in given.values()) > 1:
        yield "another device", right.to("meta")
    parameter = inspect.signature(call.forward if isinstance(call, nn.Module) else call).parameters
    if parameter[argument].default is not None:
        yield "None", None
    if not isinstance(right, bool):
        yield "a bool", True
    if argument != "seed":
        yield "a negative number", -1
    yield "NaN", math.nan
    if isinstance(right, int):
        yield "a fraction", 2.5
    yield "a class", type(right) if not inspect.isfunction(right) else nn.Linear
    yield "a function", nothing


ARRAY, COUNTS, SIGNED, FUNCTION = ["an array"], ["integers"], ["a negative number"], ["a function"]
DTYPE, DEVICE, NANS, STRING = ["another dtype"], ["another device"], ["NaN tensor"], ["a string"]
INDEX, POWER = ["integers", "None", "a negative number"], ["a fraction"]
NONE = ["None"]

ACCEPTED: dict[str, dict[str, list[str]]] = {
    # Measures are made of arrays too, and weights may be counts.
    "Measure": {"atoms": ARRAY, "weights": ARRAY + COUNTS, "times": ARRAY},
    "Measure, by logarithms": {"atoms": ARRAY, "log_weights": ARRAY},
    "Measure.from_tokens": {"tokens": ARRAY, "mask": ARRAY, "times": ARRAY},
    "Formats.from_flat": {"atoms": ARRAY, "weights": ARRAY + COUNTS, "times": ARRAY},
    "Formats.from_flat, by lengths": {"atoms": ARRAY},
    "Formats.from_flat, by offsets": {"atoms": ARRAY},
    "Measure.mixture": {"weights": COUNTS},
    "Measure.integrate, of values": {"f": COUNTS},
    "Population": {"data": ARRAY},
    "Population.without_token": {"index": SIGNED},
    # A headline is any string.
    "Path.to_html": {"title": ["a string"]},
    "Path.save": {"title": ["a string"]},
    "storable": {"arguments": FUNCTION},
    # Indices count from the end too, and may be tensors.
    "Measure.split": {"atom": SIGNED},
    "Measure.__getitem__": {"index": INDEX},
    "Relation.__getitem__": {"index": INDEX},
    "Path.__getitem__": {"index": SIGNED},
    # Numbers that may be negative, or no whole numbers.
    "Measure.gaussian, by numbers": {"mean": SIGNED},
    "Measure.grid, by numbers": {"low": SIGNED},
    "Residual": {"step": SIGNED},
    "Transformer": {"step": SIGNED},
    "Lipschitz.scaled": {"factor": SIGNED},
    "Dot": {"scale": SIGNED},
    "Sigmoid": {"bias": SIGNED},
    "flow": {"t0": SIGNED, "t1": SIGNED},
    "Flow": {"t0": SIGNED, "t1": SIGNED},
    "gaussian": {"t0": SIGNED, "t1": SIGNED},
    "Kuramoto": {"coupling": SIGNED},
    "Decay": {"strength": SIGNED},
    "Decay.__call__": {"r": ["an empty tensor", "a tensor without axes"]},  # of any shape
    "at_time": {"t": SIGNED},
    "depth_study": {"t1": SIGNED},
    "token_study": {"t1": SIGNED},
    "attention": {"scale": SIGNED},
    "stack": {"scale": SIGNED},
    "wasserstein": {"p": POWER},
    "sliced_wasserstein": {"p": POWER},
    "Path.wasserstein": {"p": POWER},
    "Wasserstein": {"p": POWER},
    # A function is called later, and what it returns is checked then; a black box that returns
    # no measure is a finding of its own.
    "Pointwise": {"f": FUNCTION},
    "MLP": {"activation": FUNCTION},
    "Pool": {"features": FUNCTION},
    "AttentionPool": {"features": FUNCTION},
    "from_sequence_model": {"model": FUNCTION},
    "Pairs": {"function": FUNCTION},
    "TileScores.mapped": {"function": FUNCTION},
    "Pairwise": {"kernel": FUNCTION},
    "CuckerSmale": {"influence": FUNCTION},
    "SoftmaxApproximation": {"rule": FUNCTION},
    "Relating": {"rule": FUNCTION},
    "SinkhornApproximation": {"rule": FUNCTION},
    "recover": {"f": FUNCTION},
    "RecoveredMap": {"f": FUNCTION},
    "derivative": {"f": FUNCTION},
    "characterise": {"f": FUNCTION},
    "Witness.replay": {"f": FUNCTION},
    "MapBox": {"f": FUNCTION},
    "TokenBox": {"model": FUNCTION},
    "QueryBox": {"model": FUNCTION},
    "audit": {"model": FUNCTION, "data": ARRAY},
    "audit, with queries": {"model": FUNCTION, "data": ARRAY, "queries": ARRAY},
    "verify": {"show": FUNCTION},
    "Model": {
        "model": FUNCTION,
        "name": STRING,
        "padded": FUNCTION,
        "class_token": SIGNED,
    },
    "Audit.__getitem__": {"name": STRING},
    "FromPairs": {"name": STRING},
    # None is the default, or switches something off.
    "OneOf": {"shares": NONE},
    "Optimiser": {"matrix_lr": NONE},
    "fit, kept": {"out": NONE},
    "fit, resumed": {"resume": NONE},
    # Queries and keys may be NaN at atoms without mass; scores are read by `relate`.
    "Encoded": {"q": NANS + FUNCTION, "k": NANS + FUNCTION},
    "Matrix": {"values": NANS},
    "TileScores.from_matrix": {"values": NANS},
    "TileScores.from_pairs": {"function": FUNCTION, "x": NANS, "y": NANS},
    "Relation.at": {"log_a": NANS},
    "doubly_stochastic": {"logits": NANS},  # such matrices are flagged
    # Conditions are numbers of any kind, one for each measure.
    "MeasureRegressor.fit": {"conditions": ARRAY + COUNTS},
    "MeasureRegressor.predict": {"conditions": ARRAY + COUNTS},
    "MeasureRegressor.score": {"conditions": ARRAY + COUNTS},
    # Only the weights of a measure are used, in the dtype of the relation.
    "Conditional.from_matrix": {"matrix": DTYPE, "nu": DTYPE},
    "Conditional.project": {"mu": DTYPE, "nu": DTYPE},
    "relate": {"start": DTYPE},  # potentials may be in float64 where points are not
    "transported": {"mu": DTYPE, "nu": DTYPE},
    "Hats.integrals": {"matrix": DTYPE, "nu": DTYPE},
    # Reductions take half precision with a bias in full precision.
    "log_integral": {"q": DTYPE, "k": DTYPE, "bias": DTYPE, "scale": SIGNED},
    "average": {"q": DTYPE, "k": DTYPE, "v": DTYPE, "bias": DTYPE, "scale": SIGNED},
    "decaying_sum": {"x": DTYPE, "y": DTYPE, "v": DTYPE},
}
"""By callable and argument, the kinds that are accepted."""

UNREAD: dict[str, list[str]] = {
    "Measure.moved": ["atoms"],
    "Measure.integrate, of values": ["f"],
    "InContextMap.forward": ["x"],
    "InContextMap.forward, with times": ["x"],
    "At.__call__": ["x"],
    "Relation.apply": ["values"],
    "log_integral": ["q", "k", "bias"],
    "average": ["q", "k", "v", "bias"],
    "decaying_sum": ["x", "y", "v"],
    "Decay.__call__": ["r"],
}
"""By callable, arguments whose values are not read, since that would wait for the device. What is
returned is then NaN."""

KNOWN: dict[str, dict[str, list[str]]] = {
    # The device "meta" has no values, and these read some before they compare devices.
    "Formats.from_flat": {"atoms": DEVICE, "batch": DEVICE},
    "Formats.from_flat, by lengths": {"atoms": DEVICE, "lengths": DEVICE},
    "Formats.from_flat, by offsets": {"atoms": DEVICE, "offsets": DEVICE},
    "audit, with queries": {"data": DEVICE, "queries": DEVICE},
}
"""By callable and argument, the kinds that are answered wrongly so far."""
