"""Faults that are put into a run at a random place, and what the right answer is. Nothing goes through the recorder.

Forward and backward faults sit in the module's own `forward` or in hooks that were there before the recorder;
others are written between the parts of a training step. Each is really part of the run.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.accuracy.survey import Place, Seen, Survey
from benchmarks.accuracy.training import Precision, Training
from recorder.walk import leaves

Action = Callable[[], None]


class Unsuited(Exception):
    """This model, or the place that was drawn, has nothing for such a fault: draw again."""


@dataclass
class Moment:
    """Where the run is, and what the fault does there. `struck` once it has done it."""

    batch: int
    now: int = -1
    struck: bool = False
    before_batch: list[Action] = field(default_factory=list)
    spoil_loss: Callable[[Tensor], Tensor] | None = None

    def begin_batch(self, number: int) -> None:
        self.now = number
        if self.is_now:
            for action in self.before_batch:
                action()

    def change_loss(self, loss: Tensor) -> Tensor:
        return self.spoil_loss(loss) if self.spoil_loss is not None and self.is_now else loss

    @property
    def is_now(self) -> bool:
        return self.now == self.batch

    def at_call(self, call: int) -> Callable[[], bool]:
        """A function to be asked at each call of a module: whether it is this call of the batch that is to strike."""
        seen: Counter[int] = Counter()

        def is_it() -> bool:
            seen[self.now] += 1
            return self.is_now and seen[self.now] == call + 1

        return is_it


@dataclass(frozen=True)
class Fault:
    """What is done, and every right name for the first bad tensor, the preferred one first.

    More than one only where they name the very same tensor at the same moment. `install` is called on a fresh
    model, before the recorder attaches.
    """

    what: str
    right: tuple[Place, ...]
    install: Callable[[Training, Moment], None]
    value: float | None = None

    @property
    def may_be_a_mask(self) -> bool:
        """A -inf that does no harm is a mask to anyone who does not know where it came from."""
        return self.value == -math.inf


@dataclass
class Draw:
    """What a fault is drawn from: the random source, and what the batch looks like when nothing is wrong."""

    random: random.Random
    survey: Survey
    training: Training
    batch: int

    def one(self, choices: list[Any]) -> Any:
        if not choices:
            raise Unsuited
        return self.random.choice(choices)

    def value(self) -> float:
        return self.random.choice((math.nan, math.inf))

    def value_in(self, tensor: Tensor) -> float:
        """A value to write into a tensor. Zeros with a -inf among them are what a mask looks like."""
        values = (math.nan, math.inf, -math.inf) if bool((tensor != 0).any()) else (math.nan, math.inf)
        return self.random.choice(values)

    def parameter(self) -> nn.Parameter:
        """Any trainable parameter with a gradient."""
        found: nn.Parameter = self.one([p for p in self.training.model.parameters() if p.grad is not None])
        return found


class Harm:
    """Whether any module of a model puts out a nan or +inf."""

    def __init__(self, model: nn.Module) -> None:
        self.done = False
        for module in model.modules():
            module.register_forward_hook(self._look)

    def _look(self, _module: nn.Module, _args: Any, output: Any) -> None:
        for _, leaf in leaves(output):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self.done |= bool((leaf.isnan() | leaf.isposinf()).any())


def written(tensor: Tensor, value: float, where: float) -> Tensor:
    """The tensor with one element replaced; `where` is its position as a share of all."""
    mask = torch.zeros(tensor.numel(), dtype=torch.bool)
    mask[int(where * tensor.numel())] = True
    return tensor.masked_fill(mask.view(tensor.shape), value)


@torch.no_grad()
def write(tensor: Tensor, value: float, where: float) -> None:
    """As `written`, in place."""
    tensor.copy_(written(tensor, value, where))


class SpoiledGradient(torch.autograd.Function):
    """Passes values on, and a gradient with one bad element back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, moment: Moment, value: float, where: float) -> Tensor:
        ctx.fault = (moment, value, where)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        moment, value, where = ctx.fault
        moment.struck = True
        return written(gradients[0], value, where), None, None, None


def replaced(value: Any, key: str, change: Callable[[Tensor], Tensor]) -> Any:
    """An output with the tensor at this key changed."""
    if key == "":
        return change(value)
    if isinstance(value, tuple) and key.isdigit():
        return tuple(change(one) if i == int(key) else one for i, one in enumerate(value))
    if isinstance(value, dict):
        value[key] = change(value[key])
        return value
    raise Unsuited


def with_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], key: str, change: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the tensor at this key changed."""
    if key.isdigit():
        return tuple(change(one) if i == int(key) else one for i, one in enumerate(args)), kwargs
    return args, {**kwargs, key: change(kwargs[key])}


def twin(training: Training, module_path: str) -> nn.Module:
    """The module of this path in another copy of the model."""
    return training.model.get_submodule(module_path)


def before_call(training: Training, moment: Moment, seen: Seen, change: Callable[[Tensor], Tensor]) -> None:
    """Change an input in a hook before the module runs: the module receives the changed one."""

    is_it = moment.at_call(seen.call)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return with_input(args, kwargs, seen.key, change) if is_it() else None

    twin(training, seen.path).register_forward_pre_hook(hook, with_kwargs=True)


def inside_call(
    training: Training,
    moment: Moment,
    seen: Seen,
    received: Callable[[Tensor], Tensor] | None = None,
    put_out: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Change an input or an output within the module's own forward."""
    module = twin(training, seen.path)
    forward, is_it = module.forward, moment.at_call(seen.call)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if not is_it():
            return forward(*args, **kwargs)
        if received is not None:
            args, kwargs = with_input(args, kwargs, seen.key, received)
        output = forward(*args, **kwargs)
        return output if put_out is None else replaced(output, seen.key, put_out)

    module.forward = faulty


def before_step(training: Training, moment: Moment, action: Action) -> None:
    """Do something just before the step of the batch; not where a scaler skips it."""
    training.optimizer.register_step_pre_hook(lambda *_: action() if moment.is_now else None)


def striking(moment: Moment, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def strike(tensor: Tensor) -> Tensor:
        moment.struck = True
        return change(tensor)

    return strike


def named(training: Training, path: str, name: str) -> Tensor:
    module = twin(training, path)
    held = module._parameters.get(name)
    tensor = held if held is not None else module._buffers[name]
    assert tensor is not None
    return tensor


def owner_places(survey: Survey, tensor: Tensor, phase: str, role: str, suffix: str = "") -> tuple[Place, ...]:
    """The names of a weight: several where it is shared."""
    return tuple(Place(phase, path, role, name + suffix) for path, name in survey.owners(tensor))


def is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and any(hasattr(module, name) for name in EPS_NAMES)


EPS_NAMES = ("eps", "variance_epsilon")


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d))


def shared_weights(survey: Survey, tensor: Tensor) -> bool:
    return len(survey.owners(tensor)) > 1


def gradients_wanted(training: Training) -> None:
    """Backward faults need a run without a scaler: it would skip the step, and rightly say nothing."""
    if training.precision is Precision.FP16:
        raise Unsuited
