"""TorchScript compiles a module together with its hooks, and can compile none of ours: it is not shown them.

While a recorder is attached, the two functions of torch.jit that read a module's hooks are wrapped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

_READERS = ("get_hook_stubs", "infer_concrete_type_builder")
_DICTS = ("_forward_hooks", "_forward_pre_hooks")

_attached = 0
_originals: dict[str, Callable[..., Any]] = {}


def hide(kinds: tuple[type, ...]) -> None:
    """Show torch.jit no hooks of these types, until `show` has been called as often as this."""
    global _attached
    _attached += 1
    if _attached > 1:
        return
    for name in _READERS:
        original = getattr(torch.jit._recursive, name, None)
        if original is not None:
            _originals[name] = original
            setattr(torch.jit._recursive, name, _without_hooks(original, kinds))


def show() -> None:
    """Undo one `hide`."""
    global _attached
    _attached -= 1
    if _attached == 0:
        for name, original in _originals.items():
            setattr(torch.jit._recursive, name, original)
        _originals.clear()


def _without_hooks(original: Callable[..., Any], kinds: tuple[type, ...]) -> Callable[..., Any]:
    @wraps(original)
    def reader(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _set_aside(nn_module, kinds):
            return original(nn_module, *args, **kwargs)

    return reader


@contextmanager
def _set_aside(module: nn.Module, kinds: tuple[type, ...]) -> Iterator[None]:
    """The module's dicts of hooks replaced by others that hold none of these types."""
    kept = {name: module.__dict__[name] for name in _DICTS if name in module.__dict__}
    for name, hooks in kept.items():
        module.__dict__[name] = OrderedDict((i, hook) for i, hook in hooks.items() if not isinstance(hook, kinds))
    try:
        yield
    finally:
        module.__dict__.update(kept)
