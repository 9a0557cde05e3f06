"""A wrong argument fails at construction, with an error that begins with its name."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recorder import DebugUnderflowOverflow, Recorder
from recorder.dump import read_info
from recorder.errors import ConfigurationError
from recorder.settings import checked_settings
from tests.recorder.watching import hooks_of


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def adam_of_another_model() -> torch.optim.Optimizer:
    return torch.optim.Adam(model().parameters())


WRONG: list[tuple[str, Any]] = [
    ("optimizer", "adam"),
    ("optimizer", torch.optim.Adam),
    ("optimizer", [None]),
    ("optimizer", adam_of_another_model()),
    ("optimizer", torch.optim.lr_scheduler.StepLR(adam_of_another_model(), 1)),
    ("scaler", "auto"),
    ("scaler", 65536.0),
    ("scaler", torch.amp.GradScaler),
    ("run_id", ""),
    ("run_id", ".."),
    ("run_id", "a/b"),
    ("run_id", "a\0b"),
    ("run_id", 3),
    ("trace_batches", 3),
    ("trace_batches", "1,3"),
    ("trace_batches", [-1]),
    ("trace_batches", [1.5]),
    ("trace_batches", [True]),
    ("trace_batches", range(-3, 3)),
    ("trace_batches", None),
    ("abort_after_batch", -1),
    ("abort_after_batch", 1.5),
    ("abort_after_batch", True),
    ("abort_after_batch", "3"),
    ("on_overflow", "abort"),
    ("on_overflow", None),
    ("on_overflow", True),
    ("phases", ()),
    ("phases", "backwards"),
    ("phases", ("forward", "loss")),
    ("phases", 3),
    ("phases", None),
    ("stats", "all"),
    ("stats", True),
    ("include", 3),
    ("include", [3]),
    ("exclude", [None]),
    ("expected", 3),
    ("expected", [3]),
    ("expected", ["a:b:c:d:e"]),
    ("expected", ["*:outputs"]),
    ("expected", ["*:output:*:minus inf"]),
    ("check", "always"),
    ("check", 1),
    ("ring_records", 0),
    ("ring_records", 1 << 40),
    ("ring_records", 100.5),
    ("ring_records", True),
]


@pytest.mark.parametrize(("argument", "value"), WRONG, ids=[f"{name}={value!r:.40}" for name, value in WRONG])
def test_a_wrong_argument_is_named(tmp_path: Path, argument: str, value: Any) -> None:
    watched = model()
    with pytest.raises(ConfigurationError) as caught:
        Recorder(watched, tmp_path / "runs", **{argument: value})
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument}: ")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert list(hooks_of(watched)) == []
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.parametrize(
    "value", [None, "model", nn.Linear, [nn.Linear(1, 1)], torch.ones(1)], ids=lambda v: str(type(v))
)
@pytest.mark.parametrize("watching", [Recorder, DebugUnderflowOverflow])
def test_what_is_no_module_is_named(tmp_path: Path, watching: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^model: expected a torch\.nn\.Module"):
        watching(value, log_dir=tmp_path)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_frames_to_save", 0),
        ("max_frames_to_save", "21"),
        ("max_frames_to_save", True),
        ("trace_batch_nums", [-1]),
        ("trace_batch_nums", 3),
        ("abort_after_batch_num", -1),
        ("abort_after_batch_num", "3"),
    ],
)
def test_the_drop_in_names_its_own_arguments(tmp_path: Path, argument: str, value: Any) -> None:
    watched = model()
    with pytest.raises(ConfigurationError) as caught:
        DebugUnderflowOverflow(watched, log_dir=tmp_path, **{argument: value})
    assert caught.value.argument == argument
    assert list(hooks_of(watched)) == []


def test_a_log_dir_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for log_dir in (tmp_path / "file", tmp_path / "file" / "runs", 3):
        with pytest.raises(ConfigurationError, match=r"^log_dir: ") as caught:
            Recorder(model(), log_dir)  # type: ignore[arg-type]
        if log_dir != 3:
            assert str(log_dir) in str(caught.value)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_log_dir_that_is_not_writable_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match=r"^log_dir: .*not writable"):
        Recorder(model(), tmp_path)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("argument", ["expected", "include", "exclude"])
def test_a_pattern_that_matches_no_module_is_a_warning(tmp_path: Path, argument: str) -> None:
    with pytest.warns(RuntimeWarning, match=rf"^{argument}: 'decoder\.\*' matches no module") as caught:
        recorder = Recorder(model(), tmp_path, **{argument: ["0*", "decoder.*"]})  # type: ignore[arg-type]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    recorder.close()


def test_patterns_that_match_are_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recorder(model(), tmp_path, expected=["*:output", "0:input:0:nan"], include=["*"], exclude=["1"]).close()


def test_right_arguments_are_accepted_in_every_form(tmp_path: Path) -> None:
    forms: list[dict[str, Any]] = [
        {"trace_batches": range(0, 10**9, 100)},
        {"trace_batches": lambda batch: batch % 2 == 0},
        {"trace_batches": (batch for batch in (1, 3))},
        {"trace_batches": {1, 3}},
        {"phases": "forward"},
        {"phases": ["optimizer", "forward"]},
        {"expected": "0:output"},
        {"include": "0"},
        {"abort_after_batch": 0},
        {"on_overflow": print},
    ]
    for form in forms:
        watched = model()
        Recorder(watched, str(tmp_path), optimizer=torch.optim.SGD(watched.parameters()), **form).close()


def test_several_optimizers_are_accepted_when_each_holds_a_parameter(tmp_path: Path) -> None:
    watched = model()
    optimizers = [torch.optim.SGD(part.parameters()) for part in watched]
    Recorder(watched, tmp_path, optimizer=optimizers).close()
    with pytest.raises(ConfigurationError, match="this Adam holds no parameter of the model"):
        Recorder(watched, tmp_path, optimizer=[*optimizers, adam_of_another_model()])


def test_traced_batches_are_known_without_being_listed() -> None:
    settings = checked_settings(".", trace_batches=range(0, 10**12, 100))
    assert [settings.is_traced(batch) for batch in (0, 1, 100, 10**11)] == [True, False, True, True]


def test_the_settings_are_in_the_dump(tmp_path: Path) -> None:
    with Recorder(model(), tmp_path, trace_batches=range(0, 9, 2), stats="full", expected="0:output") as recorder:
        dump = recorder.spill()
    found = read_info(dump).settings
    assert found["trace_batches"] == "range(0, 9, 2)"
    assert (found["stats"], found["expected"], found["on_overflow"]) == ("full", ["0:output"], "raise")
