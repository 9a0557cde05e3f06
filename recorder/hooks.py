"""Attaches hooks to every module of a model, keeps up with modules added later, and takes all of them off."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from torch import nn
from torch.utils.hooks import RemovableHandle

from recorder import scripting
from recorder.capture import Capture
from recorder.compiled import release
from recorder.hook_objects import EnterHook, ExitHook
from recorder.modules import ModulePlan, class_name, parent_path, walk_modules
from recorder.schema import ModuleInfo


class Scope:
    """Which modules are recorded: shell wildcards over the module path."""

    def __init__(self, include: Sequence[str] | None, exclude: Sequence[str] | None) -> None:
        self._include = include
        self._exclude = exclude or ()

    def covers(self, path: str) -> bool:
        included = self._include is None or any(fnmatch.fnmatchcase(path, pattern) for pattern in self._include)
        return included and not any(fnmatch.fnmatchcase(path, pattern) for pattern in self._exclude)


class HookedModel:
    """The modules of one model with the recorder's hooks on them."""

    def __init__(self, root: nn.Module, scope: Scope) -> None:
        self.root = root
        self._scope = scope
        self._capture: Capture | None = None
        self._hooks: dict[int, _Hooks] = {}
        self._owners: dict[int, tuple[str, nn.Module]] | None = None
        self._modules: list[tuple[str, nn.Module]] = []
        self._items: list[tuple[str, nn.Module, ModulePlan]] | None = None
        self._plans: dict[int, tuple[nn.Module, ModulePlan]] = {}

    def attach(self, capture: Capture) -> None:
        self._capture = capture
        scripting.hide((EnterHook, ExitHook))
        self.refresh()

    def detach(self) -> None:
        """Take every hook off; the modules are as they were."""
        for hooks in self._hooks.values():
            hooks.remove()
        self._hooks.clear()
        scripting.show()

    def refresh(self) -> bool:
        """Hook the modules that were added since; whether there were any, or any have gone."""
        modules = walk_modules(self.root)
        if len(modules) == len(self._modules) and all(
            new is old and path == old_path for (path, new), (old_path, old) in zip(modules, self._modules, strict=True)
        ):
            return False
        self._modules = modules
        self._items = None
        self._drop_gone({id(module) for _, module in modules})
        for _, plan in self._plans.values():
            plan.paths.clear()
        for path, module in modules:
            self._plan_of(module, path).add_path(path)
        return True

    def _drop_gone(self, present: set[int]) -> None:
        for gone in self._plans.keys() - present:
            del self._plans[gone]
            self._hooks.pop(gone).remove()

    def items(self) -> list[tuple[str, nn.Module, ModulePlan]]:
        """Every path with its module and plan, a shared module once for each path."""
        if self._items is None:
            self._items = [(path, module, self._plans[id(module)][1]) for path, module in self._modules]
        return self._items

    def parameter_owners(self) -> dict[int, tuple[str, nn.Module]]:
        """Path and module of each parameter, by identity."""
        if self._owners is None:
            self._owners = {
                id(parameter): (path, module)
                for path, module in reversed(self._modules)
                for parameter in module._parameters.values()
                if parameter is not None
            }
        return self._owners

    def begin_batch(self) -> None:
        self._owners = None
        for _, plan in self._plans.values():
            plan.calls.clear()
        for hooks in self._hooks.values():
            hooks.keep_last()

    def table(self) -> tuple[ModuleInfo, ...]:
        """The module table of the run metadata, in `named_modules` order."""
        return tuple(
            ModuleInfo(path, plan.module_class, parent_path(path), order, dict(plan.containers))
            for order, (path, _, plan) in enumerate(self.items())
        )

    def _plan_of(self, module: nn.Module, path: str) -> ModulePlan:
        known = self._plans.get(id(module))
        if known is not None and known[0] is module:
            return known[1]
        plan = ModulePlan(class_name(module), module is self.root, self._scope.covers(path))
        self._plans[id(module)] = (module, plan)
        self._hook(module, plan)
        return plan

    def _hook(self, module: nn.Module, plan: ModulePlan) -> None:
        assert self._capture is not None
        enter, leave = EnterHook(self._capture, plan, module), ExitHook(self._capture, plan, module)
        self._hooks[id(module)] = _Hooks(module, enter, leave)


class _Hooks:
    """The two hooks of one module, kept behind all others: what they see is what the module and its caller see."""

    def __init__(self, module: nn.Module, enter: EnterHook, leave: ExitHook) -> None:
        self._module = module
        # not the module's own methods: a ScriptModule refuses them, though it runs hooks when Python calls it
        self._enter: RemovableHandle = nn.Module.register_forward_pre_hook(module, enter, with_kwargs=True)
        self._exit: RemovableHandle = nn.Module.register_forward_hook(module, leave, with_kwargs=True)
        self._tokens = [enter.token, leave.token]

    def keep_last(self) -> None:
        for hooks, handle in (
            (self._module._forward_pre_hooks, self._enter),
            (self._module._forward_hooks, self._exit),
        ):
            if next(reversed(hooks), None) != handle.id and handle.id in hooks:
                hooks[handle.id] = hooks.pop(handle.id)

    def remove(self) -> None:
        self._enter.remove()
        self._exit.remove()
        release(self._tokens)
