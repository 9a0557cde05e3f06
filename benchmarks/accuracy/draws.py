"""The kinds of faults: each function draws a place for one of them and gives the fault."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.accuracy.faults import (
    EPS_NAMES,
    Draw,
    Fault,
    Moment,
    SpoiledGradient,
    Unsuited,
    before_call,
    before_step,
    gradients_wanted,
    inside_call,
    is_linear,
    is_norm,
    named,
    owner_places,
    shared_weights,
    striking,
    twin,
    write,
    written,
)
from benchmarks.accuracy.survey import Place, Seen, is_inside
from benchmarks.accuracy.training import Precision, Training

LARGEST_WEIGHT = 6e4  # just below the limit of float16: it is the product that overflows


def output_written(draw: Draw) -> Fault:
    """An inf or nan in an output, put there by the module itself."""
    seen: Seen = draw.one(draw.survey.outputs())
    value, where = draw.value_in(seen.tensor), draw.random.random()

    def install(training: Training, moment: Moment) -> None:
        inside_call(training, moment, seen, put_out=striking(moment, lambda t: written(t, value, where)))

    return Fault(f"{value} written into an output", (seen.place("forward", "output"),), install, value)


def input_written(draw: Draw) -> Fault:
    """An inf or nan in an input, put there by the code around the module."""
    seen: Seen = draw.one(draw.survey.inputs())
    value, where = draw.value_in(seen.tensor), draw.random.random()

    def install(training: Training, moment: Moment) -> None:
        before_call(training, moment, seen, striking(moment, lambda t: written(t, value, where)))

    return Fault(f"{value} written into an input", (seen.place("forward", "input"),), install, value)


def parameter_written(draw: Draw) -> Fault:
    """An inf or nan in a parameter, before the batch runs."""
    return _weight_written(draw, draw.parameter(), "parameter")


def buffer_poisoned(draw: Draw) -> Fault:
    """An inf or nan in a floating buffer, before the batch runs."""
    buffers = [b for b in draw.training.model.buffers() if b.is_floating_point() and b.numel()]
    return _weight_written(draw, draw.one(buffers), "buffer")


def _weight_written(draw: Draw, weight: Tensor, role: str) -> Fault:
    value, where = draw.value_in(weight), draw.random.random()
    path, name = draw.survey.owners(weight)[0]

    def install(training: Training, moment: Moment) -> None:
        def poison() -> None:
            write(named(training, path, name), value, where)
            moment.struck = True

        moment.before_batch.append(poison)

    return Fault(f"{value} written into a {role}", owner_places(draw.survey, weight, "forward", role), install, value)


def parameter_written_late(draw: Draw) -> Fault:
    """An inf or nan in a parameter, in the middle of a forward: just before its module is called."""
    called = [s for s in draw.survey.inputs() if s.module._parameters and s.call == 0]
    seen: Seen = draw.one(called)
    name = draw.one([n for n, p in seen.module._parameters.items() if p is not None])
    weight = seen.module._parameters[name]
    if weight is None or shared_weights(draw.survey, weight):
        raise Unsuited
    value, where = draw.value_in(weight), draw.random.random()
    behind_autograd = draw.random.random() < 0.5

    def install(training: Training, moment: Moment) -> None:
        def poison(tensor: Tensor) -> Tensor:
            own = named(training, seen.path, name)
            write(own.data if behind_autograd else own, value, where)
            return tensor

        before_call(training, moment, seen, striking(moment, poison))

    place = Place("forward", seen.path, "parameter", name)
    return Fault(f"{value} written into a parameter, mid-forward", (place,), install, value)


def weight_scaled(draw: Draw) -> Fault:
    """A weight scaled to just below the limit of float16, so that the product overflows."""
    if draw.training.precision is not Precision.FP16:
        raise Unsuited
    linear = [s for s in draw.survey.outputs() if is_linear(s.module) and s.call == 0]
    seen: Seen = draw.one(linear)
    weight = seen.module._parameters.get("weight")
    if weight is None or shared_weights(draw.survey, weight):
        raise Unsuited

    def install(training: Training, moment: Moment) -> None:
        @torch.no_grad()
        def scale() -> None:
            own = named(training, seen.path, "weight")
            own.mul_(LARGEST_WEIGHT / own.abs().max())

        moment.before_batch.append(scale)
        inside_call(training, moment, seen, put_out=_strikes_if_bad(moment))

    return Fault("a weight scaled: float16 overflows", (seen.place("forward", "output"),), install)


def eps_removed(draw: Draw) -> Fault:
    """A norm without its eps, that is given a row of zeros."""
    norms = [s for s in draw.survey.outputs() if is_norm(s.module) and s.key == ""]
    seen: Seen = draw.one(norms)
    given = [s for s in draw.survey.inputs() if s.path == seen.path and s.call == seen.call and s.key == "0"]
    taken: Seen = draw.one(given)

    def install(training: Training, moment: Moment) -> None:
        norm = twin(training, seen.path)

        def remove() -> None:
            for name in EPS_NAMES:
                if hasattr(norm, name):
                    setattr(norm, name, 0.0)

        moment.before_batch.append(remove)
        before_call(training, moment, taken, torch.zeros_like)
        inside_call(training, moment, seen, put_out=_strikes_if_bad(moment))

    return Fault("eps removed from a norm", (seen.place("forward", "output"),), install)


def loss_spoiled(draw: Draw) -> Fault:
    """A loss that is multiplied by inf after the model has returned it."""
    gradients_wanted(draw.training)
    losses = [s for s in draw.survey.outputs() if s.path == "" and s.key == "loss" and s.got_gradient]
    seen: Seen = draw.one(losses)

    def install(training: Training, moment: Moment) -> None:
        moment.spoil_loss = striking(moment, lambda loss: loss * math.inf)

    return Fault("the loss multiplied by inf", _same_gradient(draw, seen), install)


def grad_input_spoiled(draw: Draw) -> Fault:
    """A module that makes a bad gradient of its input from a good one of its output."""
    gradients_wanted(draw.training)
    seen: Seen = draw.one([s for s in draw.survey.inputs() if s.got_gradient])
    if not draw.survey.gives_gradient(seen):
        raise Unsuited
    value, where = draw.value(), draw.random.random()

    def install(training: Training, moment: Moment) -> None:
        def spoil(tensor: Tensor) -> Tensor:
            spoiled: Tensor = SpoiledGradient.apply(tensor, moment, value, where)  # type: ignore[no-untyped-call]
            return spoiled

        inside_call(training, moment, seen, received=spoil)

    return Fault(f"{value} made by a backward", _grad_input_names(draw, seen), install)


def grad_output_spoiled(draw: Draw) -> Fault:
    """A gradient that is bad when it reaches the output of a module, by a hook on the tensor as soon as it is made."""
    gradients_wanted(draw.training)
    new = [s for s in draw.survey.outputs() if s.got_gradient and draw.survey.producers(s.tensor)[0] is s]
    seen: Seen = draw.one(new)
    value, where = draw.value(), draw.random.random()

    def install(training: Training, moment: Moment) -> None:
        def hook(tensor: Tensor) -> Tensor:
            tensor.register_hook(striking(moment, lambda g: written(g, value, where)))
            return tensor

        inside_call(training, moment, seen, put_out=hook)

    return Fault(f"{value} written into the gradient of an output", _same_gradient(draw, seen), install)


def _grad_input_names(draw: Draw, seen: Seen) -> tuple[Place, ...]:
    """The names of an input's gradient: autograd adds up those of all modules that share the tensor."""
    alike = [
        s.place("backward", "grad_input")
        for s in draw.survey.consumers(seen.tensor)
        if not (s is seen or is_inside(s.path, seen.path) or is_inside(seen.path, s.path))
    ]
    return (seen.place("backward", "grad_input"), *alike)


def grad_input_hooked(draw: Draw) -> Fault:
    """As `grad_input_spoiled`, by a backward hook of the module's."""
    gradients_wanted(draw.training)
    given = [s for s in draw.survey.inputs() if s.got_gradient and s.key.isdigit() and draw.survey.is_called_once(s)]
    seen: Seen = draw.one([s for s in given if draw.survey.gives_gradient(s)])
    value, where = draw.value(), draw.random.random()

    def install(training: Training, moment: Moment) -> None:
        def hook(_: nn.Module, grad_input: tuple[Tensor | None, ...], __: object) -> tuple[Tensor | None, ...] | None:
            own = grad_input[int(seen.key)]
            if not moment.is_now or own is None:
                return None
            moment.struck = True
            spoilt = written(own, value, where)
            return tuple(spoilt if i == int(seen.key) else one for i, one in enumerate(grad_input))

        twin(training, seen.path).register_full_backward_hook(hook)

    return Fault(f"{value} put into grad_input by a backward hook", _grad_input_names(draw, seen), install)


def grad_output_hooked(draw: Draw) -> Fault:
    """As `grad_output_spoiled`, by a backward pre-hook of the module's: what it receives is bad, not what was sent."""
    gradients_wanted(draw.training)
    outputs = [s for s in draw.survey.outputs() if s.got_gradient and s.key == "" and draw.survey.is_called_once(s)]
    seen: Seen = draw.one(outputs)
    value, where = draw.value(), draw.random.random()

    def install(training: Training, moment: Moment) -> None:
        def hook(_: nn.Module, grad_output: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if not moment.is_now:
                return None
            moment.struck = True
            return (written(grad_output[0], value, where), *grad_output[1:])

        twin(training, seen.path).register_full_backward_pre_hook(hook)

    own = seen.place("backward", "grad_output")
    inside = [s.place("backward", "grad_output") for s in draw.survey.producers(seen.tensor) if s is not seen]
    inner = [place for place in inside if is_inside(place.module, seen.path)]
    return Fault(f"{value} put into grad_output by a backward hook", (own, *inner), install)


def _same_gradient(draw: Draw, seen: Seen) -> tuple[Place, ...]:
    """The names of an output's gradient. Where the tensor goes into modules, it is their grad_input first."""
    consumers = [s.place("backward", "grad_input") for s in draw.survey.consumers(seen.tensor)]
    producers = [s.place("backward", "grad_output") for s in draw.survey.producers(seen.tensor)]
    return tuple(consumers or reversed(producers))


def gradient_spoiled(draw: Draw) -> Fault:
    """An inf or nan in a parameter's gradient, by a hook of the parameter's own."""
    gradients_wanted(draw.training)
    parameter, value, where = draw.parameter(), draw.value(), draw.random.random()
    path, name = draw.survey.owners(parameter)[0]
    accumulated = draw.random.random() < 0.5

    def install(training: Training, moment: Moment) -> None:
        def accumulate(own: Tensor) -> None:
            if moment.is_now and own.grad is not None:
                moment.struck = True
                write(own.grad, value, where)

        def arrive(gradient: Tensor) -> Tensor:
            moment.struck |= moment.is_now
            return written(gradient, value, where) if moment.is_now else gradient

        own = named(training, path, name)
        if accumulated:
            own.register_post_accumulate_grad_hook(accumulate)
        else:
            own.register_hook(arrive)

    what = f"{value} written into a parameter's gradient"
    return Fault(what, owner_places(draw.survey, parameter, "backward", "gradient"), install)


def state_corrupted(draw: Draw) -> Fault:
    """An inf or nan in the optimizer's memory of a parameter, just before the step."""
    parameter, value, where = draw.parameter(), draw.value(), draw.random.random()
    path, name = draw.survey.owners(parameter)[0]
    state = draw.random.choice(("exp_avg", "exp_avg_sq"))

    def install(training: Training, moment: Moment) -> None:
        def corrupt() -> None:
            held = training.optimizer.state.get(named(training, path, name))
            if held:
                write(held[state], value, where)
                moment.struck = True

        before_step(training, moment, corrupt)

    places = owner_places(draw.survey, parameter, "optimizer", "optimizer_state", f".{state}")
    return Fault(f"{value} written into {state}", places, install)


def rate_spoiled(draw: Draw) -> Fault:
    """A learning rate of nan, for the group of one parameter."""
    parameter = draw.parameter()
    path, name = draw.survey.owners(parameter)[0]

    def install(training: Training, moment: Moment) -> None:
        own = named(training, path, name)
        group = training.optimizer.param_groups[0]
        group["params"] = [p for p in group["params"] if p is not own]
        training.optimizer.add_param_group({"params": [own]})

        def spoil() -> None:
            training.optimizer.param_groups[-1]["lr"] = math.nan
            moment.struck = True

        before_step(training, moment, spoil)

    return Fault("a learning rate of nan", owner_places(draw.survey, parameter, "optimizer", "parameter"), install)


def adam_eps_removed(draw: Draw) -> Fault:
    """Adam without eps: rows of an embedding that were never used are 0 / 0."""
    tables = [m.weight for m in draw.training.model.modules() if isinstance(m, nn.Embedding)]
    weight: nn.Parameter = draw.one([w for w in tables if w.grad is not None and (w.grad == 0).any()])
    path, name = draw.survey.owners(weight)[0]

    def install(training: Training, moment: Moment) -> None:
        own = named(training, path, name)
        group = training.optimizer.param_groups[0]
        group["params"] = [p for p in group["params"] if p is not own]
        training.optimizer.add_param_group({"params": [own]})

        def remove() -> None:
            training.optimizer.param_groups[-1]["eps"] = 0.0

        def look(*_: object) -> None:
            moment.struck |= moment.is_now and not bool(own.isfinite().all())

        before_step(training, moment, remove)
        training.optimizer.register_step_post_hook(look)

    return Fault("eps removed from Adam", owner_places(draw.survey, weight, "optimizer", "parameter"), install)


def step_overwritten(draw: Draw) -> Fault:
    """An inf or nan that the step itself leaves in a parameter."""
    parameter = draw.parameter()
    value, where = draw.value(), draw.random.random()
    path, name = draw.survey.owners(parameter)[0]

    def install(training: Training, moment: Moment) -> None:
        def overwrite(*_: object) -> None:
            if moment.is_now:
                write(named(training, path, name), value, where)
                moment.struck = True

        training.optimizer.register_step_post_hook(overwrite)

    places = owner_places(draw.survey, parameter, "optimizer", "parameter")
    return Fault(f"{value} left in a parameter by the step", places, install)


def _strikes_if_bad(moment: Moment) -> Callable[[Tensor], Tensor]:
    def look(output: Tensor) -> Tensor:
        moment.struck |= not bool(output.isfinite().all())
        return output

    return look


KINDS: tuple[Callable[[Draw], Fault], ...] = (
    output_written,
    input_written,
    parameter_written,
    parameter_written_late,
    buffer_poisoned,
    weight_scaled,
    eps_removed,
    loss_spoiled,
    grad_input_spoiled,
    grad_output_spoiled,
    grad_input_hooked,
    grad_output_hooked,
    gradient_spoiled,
    state_corrupted,
    rate_spoiled,
    adam_eps_removed,
    step_overwritten,
)
