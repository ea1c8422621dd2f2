"""The training loop."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._tools.checks import check_kind, check_path, check_sizes
from .._tools.output import bar
from .._tools.warn import warn
from ..maps import InContextMap
from ..maps.saving import describe
from ..measures import MeasureMap
from . import _checkpoint as checkpoint
from ._checkpoint import Row, State
from ._recording import Recorder
from ._training import Training, judged, optimisers_of, overall
from .judging import Climbers
from .problems import (
    FromPairs,
    Law,
    Obstructions,
    Simulation,
    Task,
    as_law,
    check_images,
    inspect,
)


class TrainingError(RuntimeError):
    """Training cannot go on: a loss is not finite."""


@dataclass(repr=False)
class Fit:
    """A trained model, and how it was trained.

    Args:
        model: the model with averaged weights, in evaluation mode.
        log: a line for each evaluation: step, loss, errors, learning rate, seconds.
        steps: steps that were taken.
        folder: where the run is kept, or None.
        obstructions: what a push-forward cannot do with these data; None if the model is none, or
            the target is an in-context map.
    """

    model: Any
    log: list[Row]
    steps: int
    folder: Path | None = None
    obstructions: Obstructions | None = None

    def __repr__(self) -> str:
        """Short, for notebooks: a model prints a line for each of its layers."""
        where = "" if self.folder is None else f", folder={str(self.folder)!r}"
        return f"Fit({type(self.model).__name__}, steps={self.steps}{where})"

    def __str__(self) -> str:
        """The last line of the log."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.log[-1].items())


def fit(
    model: nn.Module,
    data: Sequence[Any] | Task | None = None,
    *,
    target: InContextMap | MeasureMap | None = None,
    law: Law | Callable | None = None,
    steps: int = 4000,
    out: str | os.PathLike | None = None,
    resume: str | os.PathLike | None = None,
    training: Training | None = None,
) -> Fit:
    r"""Train a model to be a map between measures [A, Cor. 1].

    Either the map can be evaluated, as `target=`, and every step draws new measures from a `law=`.
    Or pairs of measures are given as `data`. The model is trained in place. What comes back has
    averaged weights.

    With `out=` the run is kept in a folder: its state at every evaluation (state.safetensors),
    the model (model.safetensors, which `pf.maps.load` reads), the log (log.csv, and TensorBoard's
    files if it is installed). `resume=` goes on with a run: on a CPU, and on one GPU with
    deterministic algorithms, it ends with the same bits as if it had not been interrupted.

    Where and on how many devices it runs is up to Hugging Face Accelerate: start the program by
    `accelerate launch` or `torchrun` to use several.

    Args:
        model: an in-context map such as a `pf.Transformer`, or a module that takes a measure and
            returns one.
        data: pairs `(source, target)` in a list or a `torch.utils.data.Dataset`, or a `Task`.
        target: the map to learn, an in-context map such as a `pf.Flow`, or a function of measures.
        law: where the measures come from that a target is evaluated at.
        steps: steps of the optimiser.
        out: a folder for the run.
        resume: the folder of a run to go on with.
        training: loss, batches, optimiser, adversary, evaluation, precision and seed.

    Examples:
        >>> model = pf.Residual(pf.Transformer(2, depth=1, width=16))
        >>> swarm = pf.Flow(pf.fields.Linear(-torch.eye(2), torch.eye(2)), t1=1.0)
        >>> result = pf.fit(model, target=swarm, law=pf.fitting.Mixtures(2), steps=20)
        >>> result.steps, len(result.log)
        (20, 20)
    """
    training = Training() if training is None else training
    check_kind("model", model, nn.Module, "For example a `pf.Transformer`.")
    check_kind("training", training, Training, "For example `pf.fitting.Training(seed=1)`.")
    check_sizes(steps=steps)
    for name, folder in {"out": out, "resume": resume}.items():
        if folder is not None:
            check_path(name, folder)
    task = _task(data, target, law, training)
    loop = _Loop(model, task, steps, training)
    if resume is not None:
        if out is not None and Path(out) != Path(resume):
            raise ValueError("Give `out=` for a new run or `resume=` to go on, not both.")
        loop.load(Path(resume))
    elif out is not None:
        loop.begin(checkpoint.begin(out))
    return loop.run()


def _task(
    data: Sequence[Any] | Task | None,
    target: InContextMap | MeasureMap | None,
    law: Law | Callable | None,
    training: Training,
) -> Task:
    """What is learned, from the arguments of `fit`."""
    if (data is None) == (target is None):
        raise ValueError(
            "Give pairs of measures, `pf.fit(model, pairs)`, or a map to learn with a law of "
            "measures, `pf.fit(model, target=..., law=...)`."
        )
    if isinstance(data, Task):
        return data
    if data is not None:
        return FromPairs(data, training.loss, name="data")
    if law is None:
        raise ValueError(
            "`law` must say where measures come from, such as `law=pf.fitting.Mixtures(dim)`."
        )
    return Simulation(target, as_law(law), training.loss, training.batches)  # type: ignore[arg-type]


class _Losses(nn.Module):
    """The mean loss of each of some batches, as one module that Accelerate can distribute.

    The losses of the last batch, one for each measure, come along without gradient.
    """

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, *batches: Any) -> tuple[Tensor, Tensor]:
        each = [self.task.losses(self.model, batch) for batch in batches]
        return torch.stack([losses.mean() for losses in each]), each[-1].detach()


class _Loop:
    """Steps of the optimiser; everything that changes from step to step is in its `State`."""

    def __init__(self, model: nn.Module, task: Task, steps: int, training: Training) -> None:
        self.accelerator = _accelerator()
        self.device = self.accelerator.device
        if isinstance(task, Simulation):
            task = task.on(self.device)
        self.task, self.steps, self.training = task, steps, training
        self.model = model.to(self.device).train()
        self.average = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.losses = self.accelerator.prepare(_Losses(self.model, task))
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        if not self.names:
            raise ValueError("`model` has no parameters to train.")
        self.optimisers = optimisers_of(list(self.names), training.optimiser)
        self.climbers: Climbers | None = None
        if training.adversary is not None:
            if not isinstance(task, Simulation) or not task.in_context:
                raise ValueError("An adversary needs an in-context map as the `target`.")
            self.climbers = training.adversary.begin(task, self._seeded(-1))
        self.recorder = self._recorder() if training.cuda_graphs else None
        self.every = training.evaluation.every or max(1, steps // 20)
        self.step, self.log = 0, []  # type: ignore[var-annotated]
        self.folder: Path | None = None
        self.about: dict[str, Any] = {}

    def begin(self, folder: Path) -> None:
        """Keep the run in a folder."""
        self.folder, self.about = folder, self._about()

    def load(self, folder: Path) -> None:
        """Go on with the run in a folder."""
        self.begin(folder)
        weights = self.model.state_dict()
        climbing = {} if self.climbers is None else self.climbers.tensors
        wanted = {"model": weights, "average": weights, "adversary": climbing}
        state = State.read(folder, self.about, self.steps, wanted)
        file = folder / checkpoint.STATE
        checkpoint.load_moments(file, self.optimisers, self.names, state.moments)
        self.step, self.log = state.step, state.log
        self.model.load_state_dict(state.model)
        self.average.load_state_dict(state.average)
        if self.climbers is not None:
            moved = {name: t.to(self.device) for name, t in state.adversary.items()}
            self.climbers.tensors = moved

    def run(self) -> Fit:
        """All steps that are left."""
        begin, training = time.perf_counter(), self.training
        before = self.log[-1]["seconds"] if self.log else 0.0
        loss, since = torch.zeros((), device=self.device), 0
        first_bad = torch.full((), -1, device=self.device)
        show = None if self.accelerator.is_main_process else False
        found = self._inspected()
        board = self.folder if self.accelerator.is_main_process else None
        with bar("fit", self.steps, show) as tick, _writer(board) as write:
            while self.step < self.steps and not self._stale():
                now = self._one_step()
                wrong = ~now.isfinite() & (first_bad < 0)
                first_bad = torch.where(wrong, self.step, first_bad)
                loss, since, self.step = loss + now, since + 1, self.step + 1
                here = self.step % self.every == 0 or self.step == self.steps
                if (here or self.device.type == "cpu") and int(first_bad) >= 0:
                    raise TrainingError(self._blame(int(first_bad)))
                if here:
                    mean = self.accelerator.reduce(loss / since, "mean").item()
                    row = {"step": float(self.step), "loss": mean} | self._judged()
                    rule = training.optimiser
                    row["lr"] = rule.lr * rule.rate(self.step - 1, self.steps)
                    row["seconds"] = before + time.perf_counter() - begin
                    self.log.append(row)
                    loss, since = torch.zeros_like(loss), 0
                    write(row)
                    self._keep()
                tick(self.step, f"fit, loss {self.log[-1]['loss']:.2e}" if self.log else None)
        return Fit(self.average, self.log, self.step, self.folder, found)

    def _inspected(self) -> Obstructions | None:
        """What no push-forward can do, with a warning if the model is one."""
        check_images(self.average, self.task, self._seeded(-1))
        found = inspect(self.task, self.average, self._seeded(-1))
        if found is not None and found.serious and self.accelerator.is_main_process:
            warn(f"{found} {found.remedies}")
        return found

    def _one_step(self) -> Tensor:
        """One step of the optimiser; the loss of its batch, still on the device."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        index, rule = self.step * world + rank, self.training.optimiser
        generator = self._seeded(index)
        for group in (group for method in self.optimisers for group in method.param_groups):
            group["lr"] = group["initial_lr"] * rule.rate(self.step, self.steps)
        with self._blamed():
            if self.recorder is None:
                loss, last = self._gradients(generator, index)
            else:
                loss, last = self.recorder.gradients(generator, index, self.climbers)
        self.accelerator.clip_grad_norm_(list(self.names), rule.clip)
        for method in self.optimisers:
            method.step()
        if self.climbers is not None:
            self.climbers.climb(generator, last)
        with torch.no_grad():
            kept: list[Tensor] = list(self.average.parameters())
            torch._foreach_lerp_(kept, list(self.model.parameters()), 1 - rule.decay(self.step))
        return loss

    def _gradients(self, generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and of each measure of the last one; parameters get gradients."""
        batches = [self.task.batch(generator, index)]
        if self.climbers is not None:
            batches.append(self.climbers.example(generator, index))
        half = self.training.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            losses, last = self.losses(*batches)
        for method in self.optimisers:
            method.zero_grad()
        self.accelerator.backward(losses.sum())
        return losses[0].detach(), last

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Say which step an error belongs to."""
        try:
            yield
        except Exception as error:
            error.add_note(f"This was in step {self.step} of the training.")
            raise

    def _recorder(self) -> Recorder:
        """What records CUDA graphs, or an error where there can be none."""
        if self.device.type != "cuda" or self.accelerator.num_processes > 1:
            raise ValueError(
                "`Training(cuda_graphs=True)` needs one process on an NVIDIA GPU, got "
                f"{self.accelerator.num_processes} on {self.device.type}. Leave it out."
            )
        if not isinstance(self.task, Simulation) or not self.task.in_context:
            raise ValueError(
                "`Training(cuda_graphs=True)` needs an in-context map as the `target`, whose "
                "batches have few shapes, got pairs, a function of measures or another task. "
                "Leave it out."
            )
        return Recorder(self.model, self.task, half=self.training.precision == "bfloat16")

    def _seeded(self, index: int) -> torch.Generator:
        """The generator of a step; PyTorch's own, which dropout uses, is seeded as well."""
        seed = (self.training.seed * 1_000_003 + index + 1) % (1 << 60)
        torch.manual_seed(seed)
        return torch.Generator(self.device).manual_seed(seed)

    def _judged(self) -> Row:
        """Errors of the averaged weights on held-out measures."""
        for own, other in zip(self.average.buffers(), self.model.buffers(), strict=True):
            own.copy_(other)
        with torch.no_grad():
            return judged(self.average, self.task, self.training.evaluation, self.device)

    def _stale(self) -> bool:
        """Whether the last evaluations brought nothing new."""
        patience = self.training.evaluation.patience
        if patience is None or len(self.log) <= patience:
            return False
        judged = [overall(row) for row in self.log]
        return min(judged[-patience:]) >= min(judged[:-patience])

    def _keep(self) -> None:
        """Write state, log and model; other processes wait."""
        if self.folder is not None and self.accelerator.is_main_process:
            moments = checkpoint.named_moments(self.optimisers, self.names)
            climbing = {} if self.climbers is None else self.climbers.tensors
            parts = self.model.state_dict(), self.average.state_dict(), moments, climbing
            State(self.step, *parts, self.log).write(self.folder, self.about)
            checkpoint.write_model(self.average, self.folder)
        self.accelerator.wait_for_everyone()

    def _about(self) -> dict[str, Any]:
        """What the run is, as data."""
        task = {f"task: {name}": value for name, value in self.task.describe().items()}
        words = {name: repr(value) for name, value in vars(self.training).items()}
        del words["cuda_graphs"]  # a run may go on elsewhere
        if self.accelerator.num_processes > 1:  # each has batches of its own
            words["processes"] = str(self.accelerator.num_processes)
        return json.loads(
            json.dumps({"model": describe(self.model), "steps": self.steps, **task, **words})
        )

    def _blame(self, step: int) -> str:
        """What made the loss of a step not finite: a measure of its batch, or the model."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        index = step * world + rank
        batch = self.task.batch(self._seeded(index), index)
        found = f"The loss of step {step} is not finite."
        kept = f" The last good state is in {str(self.folder)!r}." if self.about else ""
        for name in ("source", "target"):
            mu = getattr(batch, name, None)
            if mu is not None and not (good := mu.atoms.isfinite().flatten(1).all(1)).all():
                which = int((~good).nonzero()[0])
                return f"{found} In its batch the {name} of measure {which} is not finite.{kept}"
        return (
            f"{found} Its data are finite, so the model overflowed: lower `Optimiser(lr=...)`, or "
            f"give the blocks a LayerNorm.{kept}"
        )


def _accelerator() -> Any:
    """Hugging Face's Accelerator, which knows the devices."""
    try:
        from accelerate import Accelerator
    except ImportError:
        raise ImportError(
            "Training needs Hugging Face Accelerate: `pip install accelerate`."
        ) from None
    launched = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    # Without being told, Accelerate does not connect processes that have no accelerator.
    accelerator = Accelerator(cpu=launched > 1 and not torch.accelerator.is_available())
    if accelerator.num_processes != launched:
        raise RuntimeError(
            f"{launched} processes were started, but Accelerate connects "
            f"{accelerator.num_processes}: each would train alone. If the program made an "
            "`Accelerator` itself, make it after `fit`, or with `cpu=True`."
        )
    return accelerator


class _writer:
    """TensorBoard's files in the folder of a run, if it is installed."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.board: Any = None

    def __enter__(self) -> Callable[[Row], None]:
        if self.folder is not None and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.folder / "tensorboard"))
        return self.write

    def write(self, row: Row) -> None:
        """Write a line of the log."""
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, int(row["step"]))

    def __exit__(self, *error: object) -> None:
        if self.board is not None:
            self.board.close()
