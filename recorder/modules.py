"""Names of modules: fully qualified, wrappers stripped, and which of several paths of a shared module is running."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from recorder.schema import Role
from recorder.weights import Weights

_WRAPPER_PARTS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPPER_CLASSES = frozenset(
    {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "OptimizedModule"}
)
_MAX_PATHS = 256
"""Of one shared module. Modules that all hold all those before them have 2^n paths, and no end would be seen."""

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module")


class ModulePlan:
    """What the hooks of one module need to know, made once: its class, its paths, and its calls in this batch."""

    __slots__ = ("calls", "containers", "depths", "is_root", "module_class", "paths", "recorded", "weights")

    def __init__(self, module_class: str, is_root: bool, recorded: bool) -> None:
        self.module_class = module_class
        self.is_root = is_root
        self.recorded = recorded
        self.paths: list[str] = []
        self.depths: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.containers: dict[str, str] = {}
        self.weights: Weights | None = None

    def add_path(self, path: str) -> None:
        self.paths.append(path)
        self.depths[path] = path.count(".") + 1 if path else 0

    def path_under(self, running: str | None) -> str:
        """The path that is executing, given the path of the innermost module that is running."""
        if len(self.paths) == 1 or running is None:
            return self.paths[0]
        return max(self.paths, key=lambda path: _shared_parts(path, running))

    def container_note(self, role: Role) -> Callable[[str, str], None]:
        """Remembers the type of a container that was opened: "output" or "input.0" to "list"."""

        def note(key: str, kind: str) -> None:
            self.containers[f"{role.value}.{key}" if key else role.value] = kind

        return note

    def next_call(self, path: str) -> int:
        call = self.calls.get(path, 0)
        self.calls[path] = call + 1
        return call


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model inside DataParallel, DDP, FSDP and torch.compile wrappers."""
    while any(cls.__name__ in _WRAPPER_CLASSES for cls in type(model).__mro__):
        inner = next(
            (getattr(model, name) for name in _WRAPPED if isinstance(getattr(model, name, None), nn.Module)), None
        )
        if inner is None:
            return model
        model = inner
    return model


def stripped(name: str) -> str:
    """A qualified name without the parts that checkpoint, FSDP and compile wrappers add."""
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def class_name(module: nn.Module) -> str:
    """The user's class: FSDP2 puts a class FSDPLinear before Linear, and it is Linear that people know."""
    mro = type(module).__mro__
    if any(cls.__name__ == "FSDPModule" for cls in mro[1:]) and mro[0].__name__.startswith("FSDP"):
        return next(cls.__name__ for cls in mro[1:] if cls.__name__ != "FSDPModule")
    return mro[0].__name__


def walk_modules(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every (stripped path, module), a shared module once for each of its paths, parents first.

    A module that wraps another under the same stripped path is left out: only what it wraps is recorded.
    """
    found: list[tuple[str, nn.Module]] = []
    _walk(root, "", (), found, {})
    return found


def _walk(
    module: nn.Module,
    path: str,
    ancestors: tuple[nn.Module, ...],
    found: list[tuple[str, nn.Module]],
    visits: dict[int, int],
) -> None:
    visited = visits[id(module)] = visits.get(id(module), 0) + 1
    if visited > _MAX_PATHS:
        return
    children = module._modules
    if not children:
        found.append((path, module))
        return
    if any(module is ancestor for ancestor in ancestors):
        return
    if _WRAPPER_PARTS.isdisjoint(children.keys()):  # keys(), for a ScriptModule's children are no dict
        found.append((path, module))
    ancestors = (*ancestors, module)
    prefix = f"{path}." if path else ""
    for name, child in children.items():
        if child is not None:
            _walk(child, path if name in _WRAPPER_PARTS else prefix + name, ancestors, found, visits)


def parent_path(path: str) -> str | None:
    return path.rpartition(".")[0] if path else None


def _shared_parts(path: str, running: str) -> int:
    count = 0
    for mine, theirs in zip(path.split("."), running.split("."), strict=False):
        if mine != theirs:
            break
        count += 1
    return count
