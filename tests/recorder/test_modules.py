"""Modules are named as `named_modules` names them, without what wrappers add, by the path that is running."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from recorder.modules import class_name, parent_path, stripped, unwrapped, walk_modules
from tests.recorder.watching import Watch, forward


def paths(model: nn.Module) -> list[str]:
    return [path for path, _ in walk_modules(model)]


def test_paths_are_those_of_named_modules() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)
    assert paths(model) == [name for name, _ in model.named_modules()]


def test_a_shared_module_has_each_of_its_paths() -> None:
    shared = nn.Linear(1, 1)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    assert paths(model) == ["", "a", "a.0", "b", "b.0"]


def test_a_module_that_holds_itself_ends() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].owner = model
    assert paths(model) == ["", "0"]


def test_a_missing_child_is_passed_over() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model.register_module("downsample", None)
    assert paths(model) == ["", "0"]


def test_checkpoint_wrappers_are_stripped() -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Sequential(nn.Linear(1, 1))), nn.ReLU())
    assert paths(model) == ["", "0", "0.0", "1"]
    assert [type(module).__name__ for _, module in walk_modules(model)] == [
        "Sequential",
        "Sequential",
        "Linear",
        "ReLU",
    ]


def test_compiled_children_are_stripped() -> None:
    compiled: Any = torch.compile(nn.Sequential(nn.Linear(1, 1)))
    model = nn.Sequential(compiled, nn.ReLU())
    assert paths(model) == ["", "0", "0.0", "1"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("encoder.block.0", "encoder.block.0"),
        ("_orig_mod.encoder", "encoder"),
        ("encoder._fsdp_wrapped_module.block._checkpoint_wrapped_module.0", "encoder.block.0"),
        ("my_orig_mod.x", "my_orig_mod.x"),
        ("", ""),
    ],
)
def test_names_of_wrappers_are_stripped(name: str, plain: str) -> None:
    assert stripped(name) == plain


def test_the_users_model_is_found_inside_its_wrappers() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    assert unwrapped(model) is model
    assert unwrapped(nn.DataParallel(model)) is model
    compiled: Any = torch.compile(model)
    assert unwrapped(compiled) is model
    assert unwrapped(nn.DataParallel(compiled)) is model


def test_a_users_module_called_module_is_no_wrapper() -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    task = Task()
    assert unwrapped(task) is task
    assert paths(task) == ["", "module"]


def test_classes_keep_the_names_that_people_know() -> None:
    fsdp_module = type("FSDPModule", (), {})
    renamed = nn.Linear(1, 1)
    renamed.__class__ = type("FSDPLinear", (fsdp_module, nn.Linear), {})
    assert class_name(renamed) == "Linear"
    assert class_name(type("FSDPLinear", (nn.Linear,), {})(1, 1)) == "FSDPLinear"


def test_parents() -> None:
    assert [parent_path(path) for path in ("a.b.c", "a", "")] == ["a.b", "", None]


def test_a_wrapped_model_is_recorded_under_the_users_names(recording: Watch) -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Sequential(nn.Linear(2, 2))), nn.ReLU())
    recording(nn.DataParallel(model))
    model(torch.ones(1, 2)).sum().backward()
    assert set(recording.rows().module) == {"", "0", "0.0", "1"}


def test_a_shared_child_is_recorded_under_the_block_that_runs(recording: Watch) -> None:
    norm = nn.LayerNorm(2)
    blocks = [nn.Sequential(nn.Linear(2, 2), norm) for _ in range(3)]
    model = nn.Sequential(*blocks)
    recording(model)
    model(torch.ones(1, 2))
    rows = recording.rows()
    assert [len(forward(rows, f"{block}.1", "output")) for block in range(3)] == [1, 1, 1]
    assert set(rows.loc[rows.module_class == "LayerNorm", "call"]) == {0}


def test_the_module_table_lists_modules_that_never_ran(recording: Watch) -> None:
    from recorder.dump import read_info

    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    model.unused = nn.Linear(2, 2)
    model.forward = lambda x: model[0](x)  # type: ignore[method-assign]
    recorder = recording(model)
    model(torch.ones(1, 2))
    table = read_info(recorder.spill()).modules  # type: ignore[union-attr]
    assert [(one.name, one.module_class, one.parent) for one in table] == [
        ("", "Sequential", None),
        ("0", "Linear", ""),
        ("1", "Sequential", ""),
        ("1.0", "ReLU", "1"),
        ("unused", "Linear", ""),
    ]


def test_a_module_that_is_moved_is_recorded_under_its_new_path(recording: Watch) -> None:
    """An adapter takes the place of the layer that it wraps."""
    model = nn.Sequential(nn.Linear(2, 2))
    recording(model)
    model(torch.ones(1, 2)).sum().backward()
    model[0] = nn.Sequential(model[0])
    model(torch.ones(1, 2)).sum().backward()
    rows = recording.rows()
    weights = rows[(rows.batch == 1) & rows.role.isin(["parameter", "gradient"])]
    assert set(zip(weights.module, weights.module_class, weights.role, strict=True)) == {
        ("0.0", "Linear", "parameter"),
        ("0.0", "Linear", "gradient"),
    }


def test_modules_that_hold_all_those_before_them_are_walked_in_good_time() -> None:
    modules: list[nn.Module] = []
    for _ in range(40):
        modules.append(nn.ModuleList(modules))
    assert len(walk_modules(modules[-1])) <= 256 * 40
