"""Steps whose launches are recorded once as a CUDA graph, and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..measures import Measure
from .judging import Climbers
from .problems import Simulation


class Gradients(NamedTuple):
    """What a replay finds, beside the gradients that it adds to those of the model.

    Args:
        loss: the mean over the measures.
        each: the loss of each measure.
        points: its gradient in the atoms of the measures, if they climb.
        logs: the same in their log-weights.
    """

    loss: Tensor
    each: Tensor
    points: Tensor | None
    logs: Tensor | None


Replay = Callable[[Measure], Gradients]
"""Losses of measures, of the shapes that were recorded; their gradients are added up."""


class Recorder:
    """The passes of a model over simulated measures, forward and backward, as CUDA graphs.

    A step of a small network is thousands of short kernels, and a GPU waits for Python to launch
    them. A graph launches all at once. It is recorded for every shape of batch, the first time
    that it comes, and kept.

    Args:
        model: what is trained.
        task: the simulator, whose target is recorded too.
        half: whether products of matrices are in bfloat16.
    """

    def __init__(self, model: nn.Module, task: Simulation, *, half: bool = False) -> None:
        self.model, self.task, self.half = model, task, half
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        for p in self.parameters:
            p.grad = None
        self.replays: dict[tuple, Replay] = {}
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def gradients(
        self, generator: torch.Generator, index: int, climbers: Climbers | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and of each measure of the last one; parameters get gradients.

        Args:
            generator: draws the batch.
            index: its number.
            climbers: measures of an adversary, which get gradients too.
        """
        batches = [self.task.batches.draw(self.task.law, generator, index)]
        replays = [self._ready(batches[0], climbing=False)]
        if climbers is not None:
            batches.append(Measure.unchecked(*climbers.choose(generator, index)))
            replays.append(self._ready(batches[1], climbing=True))
        torch._foreach_zero_(self._accumulated())
        found = [replay(mu) for replay, mu in zip(replays, batches, strict=True)]
        if climbers is not None:
            climbers.x.grad, climbers.logs.grad = found[1].points, found[1].logs
        return found[0].loss, found[-1].each

    def _ready(self, mu: Measure, *, climbing: bool) -> Replay:
        """A function that replays the passes over measures of these shapes.

        It is recorded when they come for the first time, which overwrites the gradients of the
        model.
        """
        key = (climbing, *((t.shape, t.dtype) for t in _tensors(mu)))
        if key not in self.replays:
            self.replays[key] = self._record(mu, climbing)
        return self.replays[key]

    def _record(self, mu: Measure, climbing: bool) -> Replay:
        """Run the passes once, so that everything is compiled and allocated, then record them."""
        kept = [t.detach().clone() for t in _tensors(mu)]
        with _undone(self.model):
            try:
                launch, result = recorded(partial(self._passes, kept, climbing), self.pool)
            except RuntimeError as error:
                error.add_note(
                    "While a CUDA graph is recorded, model, target and loss must not look at "
                    "values, as `.item()` and `if` do. Train with `cuda_graphs=False`."
                )
                raise

        def replay(mu: Measure) -> Gradients:
            with torch.no_grad():
                torch._foreach_copy_(kept, _tensors(mu))
            launch()
            # All graphs compute in the same memory, so what they leave behind is copied.
            copied = [None if t is None else t.clone() for t in result]
            return Gradients(*copied)  # type: ignore[arg-type]

        return replay

    def _passes(self, tensors: list[Tensor], climbing: bool) -> Gradients:
        """Losses, and their gradients, which are added to those of the parameters."""
        points, logs, *times = tensors
        if climbing:
            example = Climbers.posed(self.task, points.requires_grad_(), logs.requires_grad_())
        else:
            example = self.task.solved(Measure.unchecked(points, logs, *times))
        with torch.autocast(points.device.type, torch.bfloat16, self.half, cache_enabled=False):
            losses = self.task.losses(self.model, example)
        loss, own = losses.mean(), (points, logs) if climbing else ()
        found = torch.autograd.grad(loss, [*self.parameters, *own], allow_unused=True)
        self._accumulate(found[: len(self.parameters)])
        return Gradients(
            loss.detach(), losses.detach(), *(found[len(self.parameters) :] or (None, None))
        )

    def _accumulate(self, found: Sequence[Tensor | None]) -> None:
        """Add gradients to those of the parameters; parameters that are not used get none."""
        used = [(p, g) for p, g in zip(self.parameters, found, strict=True) if g is not None]
        for p, _ in used:
            if p.grad is None:  # while everything is run once, not while it is recorded
                p.grad = torch.zeros_like(p)
        torch._foreach_add_([p.grad for p, _ in used], [g for _, g in used])  # type: ignore

    def _accumulated(self) -> list[Tensor]:
        """The gradients of the parameters."""
        return [p.grad for p in self.parameters if p.grad is not None]


def _tensors(mu: Measure) -> list[Tensor]:
    """The tensors of a measure."""
    return [mu.atoms, mu.log_weights] + ([] if mu.times is None else [mu.times])


def recorded(run: Callable[[], Gradients], pool: Any) -> tuple[Callable[[], None], Gradients]:
    """A function that launches a run again, and the tensors where it leaves its results.

    It is run once before, so that everything is compiled and allocated.

    Args:
        run: the passes.
        pool: the memory that all graphs share.
    """
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    try:
        with torch.cuda.graph(graph, pool=pool):
            result = run()
    except BaseException:
        _recover()
        raise
    return graph.replay, result


def _recover() -> None:
    """After a graph failed: let random numbers be drawn again, by recording one that succeeds.

    PyTorch leaves the generator of the device as if the recording still went on.
    """
    number = torch.zeros((), device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        number += 1


@contextmanager
def _undone(model: nn.Module) -> Iterator[None]:
    """Restore random numbers and the buffers of a model afterwards."""
    state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    buffers = dict(model.named_buffers())
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    try:
        yield
    finally:
        if state is not None:
            torch.cuda.set_rng_state(state)
        for name, buffer in buffers.items():
            buffer.copy_(before[name])
    for name, buffer in model.named_buffers():
        if buffer is not buffers.get(name):
            raise ValueError(
                f"The buffer `{name}` of the model must be changed in place while a CUDA graph is "
                "recorded, as by `copy_`, but was replaced. Or train with `cuda_graphs=False`."
            )
