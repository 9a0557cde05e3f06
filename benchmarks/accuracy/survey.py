"""What happens in one batch of a model, found with plain PyTorch hooks: where a fault can be put.

It uses nothing of the recorder but `leaves`, for the names of nested values: what the recorder says is held
against this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recorder.walk import leaves


class Place(NamedTuple):
    """The name of one tensor at one moment, in the words of a trigger. `call` is None where it does not matter."""

    phase: str
    module: str
    role: str
    key: str
    call: int | None = None


@dataclass(eq=False)
class Seen:
    """A floating tensor that went into a module or came out of it."""

    module: nn.Module
    path: str
    call: int
    role: str
    key: str
    tensor: Tensor
    got_gradient: bool = False

    @property
    def is_top_level(self) -> bool:
        """Whether it is an argument or an output itself, and not an element of one."""
        return "." not in self.key

    def place(self, phase: str, role: str) -> Place:
        return Place(phase, self.path, role, self.key, self.call)


class Survey:
    """Everything that was seen in one batch, in order."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen: list[Seen] = []
        self._paths: dict[int, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(id(module), []).append(path)
        self._running: list[str] = []
        self._calls: Counter[str] = Counter()

    def watch(self, run: Callable[[], Any]) -> None:
        """Run one batch, forward and backward, and note what passes."""
        handles = []
        for module in self.model.modules():
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave))
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()

    def inputs(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.role == "input" and seen.is_top_level]

    def outputs(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.role == "output" and seen.is_top_level]

    def consumers(self, tensor: Tensor) -> list[Seen]:
        """The innermost module calls that this very tensor went into, and a gradient went through."""
        takers = [s for s in self.seen if s.role == "input" and s.tensor is tensor and self.gives_gradient(s)]
        return [one for one in takers if not any(is_inside(other.path, one.path) for other in takers)]

    def gives_gradient(self, seen: Seen) -> bool:
        """Whether a gradient reached an output of this module call."""
        return any(
            one.got_gradient and one.path == seen.path and one.call == seen.call
            for one in self.seen
            if one.role == "output"
        )

    def is_called_once(self, seen: Seen) -> bool:
        return not any(one.module is seen.module and one.call != seen.call for one in self.seen)

    def producers(self, tensor: Tensor) -> list[Seen]:
        """The module calls that put out this very tensor, the innermost first."""
        return [seen for seen in self.seen if seen.role == "output" and seen.tensor is tensor]

    def owners(self, tensor: Tensor) -> list[tuple[str, str]]:
        """Every (module path, name) under which a parameter or buffer is held, in the order of named_modules."""
        return [
            (path, name)
            for path, module in self.model.named_modules(remove_duplicate=False)
            for held in (module._parameters, module._buffers)
            for name, one in held.items()
            if one is tensor
        ]

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = self._path_of(module)
        self._running.append(path)
        self._calls[path] += 1
        for key, value in [*((str(i), arg) for i, arg in enumerate(args)), *kwargs.items()]:
            self._note(module, "input", key, value)

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        self._note(module, "output", "", output)
        self._running.pop()

    def _path_of(self, module: nn.Module) -> str:
        """The path that is executing: the one that shares most with the module around."""
        around = self._running[-1] if self._running else ""
        return max(self._paths[id(module)], key=lambda path: _shared(path, around))

    def _note(self, module: nn.Module, role: str, key: str, value: Any) -> None:
        path = self._running[-1]
        for name, leaf in leaves(value, key):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.numel():
                continue
            seen = Seen(module, path, self._calls[path] - 1, role, name, leaf)
            self.seen.append(seen)
            if leaf.requires_grad and not leaf.is_leaf and torch.is_grad_enabled():
                leaf.register_hook(lambda _, seen=seen: setattr(seen, "got_gradient", True))


def _shared(path: str, around: str) -> int:
    parts = zip(path.split("."), around.split("."), strict=False)
    return next((n for n, (a, b) in enumerate(parts) if a != b), min(path.count("."), around.count(".")) + 1)


def is_inside(path: str, outer: str) -> bool:
    return path != outer and (outer == "" or path.startswith(outer + "."))
