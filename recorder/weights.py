"""A module's own parameters and buffers, and what was measured of them while they stay as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recorder.records import TensorRecord
from recorder.schema import Role


class Weights:
    """Records of a module's own parameters and buffers.

    generation: that of the meter whose numbers they hold.
    """

    __slots__ = ("_looked_at", "flagged", "generation", "records")

    def __init__(
        self,
        looked_at: list[tuple[Role, str, torch.Tensor]],
        records: list[TensorRecord],
        flagged: bool,
        generation: int,
    ) -> None:
        self._looked_at = [(role, name, tensor, version_of(tensor)) for role, name, tensor in looked_at]
        self.records = records
        self.flagged = flagged
        self.generation = generation

    def are_current(self, module: nn.Module) -> bool:
        """Whether the module still has these tensors, and none was written to."""
        parameters, buffers = own_parameters(module), as_dict(module._buffers)
        for role, name, tensor, version in self._looked_at:
            held = parameters if role is Role.PARAMETER else buffers
            if held.get(name) is not tensor or version < 0 or tensor._version != version:
                return False
        return True


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """A DataParallel replica has its parameters, as plain tensors, under another name."""
    if "_former_parameters" in module.__dict__:
        return dict(module.__dict__["_former_parameters"])
    return as_dict(module._parameters)


def as_dict(tensors: Any) -> dict[str, Any]:
    """A ScriptModule's parameters and buffers are no dict."""
    return tensors if isinstance(tensors, dict) else dict(tensors.items())


def has_weights(module: nn.Module) -> bool:
    """Whether the module may hold parameters or buffers of its own."""
    return bool(module._parameters or module._buffers or "_former_parameters" in module.__dict__)


def version_of(tensor: torch.Tensor) -> int:
    """The version counter; -1 for a tensor that has none, which is to be looked at every time."""
    try:
        return int(tensor._version)
    except (RuntimeError, ValueError):  # an inference tensor; a parameter that is not initialised yet
        return -1
