"""Hooks that live on modules and stay behind when a module is copied, pickled or forked."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from recorder.capture import Capture
from recorder.compiled import is_exporting, new_token, watch
from recorder.modules import ModulePlan

# A bound method of the standard library that takes any arguments and returns None: what a hook becomes in a
# copy or a pickle of its module, so that neither writes into this recorder, and a pickle loads without Overflight.
_INERT = (getattr, (contextlib.nullcontext(), "__exit__"))


class EnterHook:
    """Forward pre-hook of one module."""

    __slots__ = ("_capture", "_plan", "token")

    def __init__(self, capture: Capture, plan: ModulePlan, module: nn.Module) -> None:
        self._capture = capture
        self._plan = plan
        self.token = new_token(lambda inputs: capture.on_enter_compiled(plan, module, inputs))

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            if not is_exporting():
                watch(self.token, [*((str(i), arg) for i, arg in enumerate(args)), *kwargs.items()])
            return
        self._capture.on_enter(self._plan, module, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _INERT


class ExitHook:
    """Forward hook of one module."""

    __slots__ = ("_capture", "_plan", "token")

    def __init__(self, capture: Capture, plan: ModulePlan, module: nn.Module) -> None:
        self._capture = capture
        self._plan = plan
        self.token = new_token(lambda outputs: capture.on_exit_compiled(plan, module, outputs))

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling():
            if not is_exporting():
                watch(self.token, [("", output)])
            return
        self._capture.on_exit(self._plan, module, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _INERT
