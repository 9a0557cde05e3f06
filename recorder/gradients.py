"""The backward phase: gradients at the outputs and inputs of each module call, and of each parameter."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from recorder.frames import OpenFrame
from recorder.records import Frame, TensorRecord
from recorder.schema import Phase, Role

_BACKWARD, _ACCUMULATED = "_backward_hooks", "_post_accumulate_grad_hooks"

_MANY_TENSORS = 1 << 14
"""Tensors remembered before those that are gone are looked for."""


@dataclass(eq=False, slots=True)
class BackwardFrame:
    """One module call on its way back. Complete when every gradient it waits for has arrived."""

    owner: OpenFrame
    awaited: int = 0
    records: list[TensorRecord] = field(default_factory=list)
    emitted: bool = False

    def has(self, role: Role) -> bool:
        return any(record.role is role for record in self.records)

    def bad(self, role: Role) -> bool:
        return any(record.role is role and record.statistics.flagged for record in self.records)

    @property
    def is_complete(self) -> bool:
        return len(self.records) >= self.awaited

    def frame(self, seq: int, t_ns: int) -> Frame:
        records = tuple(sorted(self.records, key=lambda record: record.role is not Role.GRAD_OUTPUT))
        origin = self.bad(Role.GRAD_INPUT) and not self.bad(Role.GRAD_OUTPUT)
        forward = self.owner.frame(seq, t_ns, records)
        return forward._replace(phase=Phase.BACKWARD, origin=origin)


@dataclass(eq=False, slots=True)
class Target:
    """What one gradient is to one module call."""

    backward: BackwardFrame
    role: Role
    key: str


class GradientHook:
    """Hook of one tensor, for all module calls that it went through. Inert in a copy or pickle."""

    __slots__ = ("_arrived", "reference", "targets", "version")
    __torch_unserializable__ = True  # pickling the tensor leaves this hook behind, and that is no reason to warn

    def __init__(self, tensor: torch.Tensor, arrived: Callable[[GradientHook, torch.Tensor], None]) -> None:
        self.targets: list[Target] = []
        self.version = tensor._version
        self._arrived = arrived

    def __call__(self, gradient: torch.Tensor) -> None:
        self._arrived(self, gradient)


class GradientWatch:
    """Registers hooks on the tensors of module calls and on parameters, each once."""

    def __init__(
        self,
        arrived: Callable[[GradientHook, torch.Tensor], None],
        accumulated: Callable[[str, str, nn.Module, torch.Tensor], None],
    ) -> None:
        self._arrived = arrived
        self._accumulated = accumulated
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], GradientHook]] = {}
        self._leaf_hooks: list[_RemovableHook] = []
        self._parameters: dict[int, _RemovableHook] = {}
        self._prune_at = _MANY_TENSORS
        self.has_lazy_parameters = False

    def begin_batch(self) -> None:
        self._tensors.clear()
        for leaf_hook in self._leaf_hooks:
            leaf_hook.remove()
        self._leaf_hooks.clear()

    def watch(self, backward: BackwardFrame, role: Role, key: str, tensor: torch.Tensor) -> None:
        """Await the gradient of a tensor, if it will have one."""
        if not tensor.requires_grad or not (tensor.is_floating_point() or tensor.is_complex()):
            return
        hook = self._hook_of(tensor)
        hook.targets.append(Target(backward, role, key))
        backward.awaited += 1

    def watch_parameters(self, path: str, module: nn.Module) -> None:
        """Await the accumulated gradient of the module's own trainable parameters."""
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
                continue
            if nn.parameter.is_lazy(parameter):
                self.has_lazy_parameters = True
                continue
            known = self._parameters.get(id(parameter))
            if known is None or known.tensor is not parameter:
                hook = _AccumulatedHook(path, name, module, self._accumulated)
                self._parameters[id(parameter)] = _RemovableHook(parameter, _ACCUMULATED, hook)

    def forget_parameters(self) -> None:
        """Let go of all parameters: some are gone, or are under another path now."""
        for hook in self._parameters.values():
            hook.remove()
        self._parameters.clear()

    @property
    def num_parameters(self) -> int:
        return len(self._parameters)

    def detach(self) -> None:
        self.begin_batch()
        self.forget_parameters()

    def _hook_of(self, tensor: torch.Tensor) -> GradientHook:
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1].version == tensor._version:
            return known[1]
        hook = GradientHook(tensor, self._arrived)
        if tensor.is_leaf:
            self._leaf_hooks.append(_RemovableHook(tensor, _BACKWARD, hook))
        else:
            tensor.register_hook(hook)
        self._tensors[id(tensor)] = (weakref.ref(tensor), hook)
        if len(self._tensors) > self._prune_at:
            self._prune()
        return hook

    def _prune(self) -> None:
        """Forget tensors that are gone: where the root is never called, no batch begins to do so."""
        self._tensors = {key: known for key, known in self._tensors.items() if known[0]() is not None}
        self._prune_at = max(_MANY_TENSORS, 2 * len(self._tensors))


class _RemovableHook:
    """A hook of a leaf, which outlives the batch. Removed, it leaves the tensor as it was: no empty dict of hooks.

    A parameter is held on to; an input of the user's is the user's to let go of.
    """

    __slots__ = ("_attribute", "_had_none", "_handle", "_reference")

    def __init__(self, tensor: torch.Tensor, attribute: str, hook: Callable[[torch.Tensor], None]) -> None:
        self._attribute = attribute
        self._had_none = getattr(tensor, attribute) is None
        self._handle: RemovableHandle
        self._reference: Callable[[], torch.Tensor | None]
        if attribute == _BACKWARD:
            self._handle, self._reference = tensor.register_hook(hook), weakref.ref(tensor)
        else:
            self._handle, self._reference = tensor.register_post_accumulate_grad_hook(hook), lambda: tensor

    @property
    def tensor(self) -> torch.Tensor | None:
        return self._reference()

    def remove(self) -> None:
        self._handle.remove()
        tensor = self._reference()
        if self._had_none and tensor is not None and not getattr(tensor, self._attribute):
            setattr(tensor, self._attribute, None)


class _AccumulatedHook:
    """Post-accumulate hook of one parameter."""

    __slots__ = ("_accumulated", "_module", "_name", "_path")

    def __init__(self, path: str, name: str, module: nn.Module, accumulated: Callable[..., Any]) -> None:
        self._path = path
        self._name = name
        self._module = module
        self._accumulated = accumulated

    def __call__(self, parameter: torch.Tensor) -> None:
        self._accumulated(self._path, self._name, self._module, parameter)
