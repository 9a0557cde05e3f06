"""What a Recorder does when something is found, when a batch is traced, and when it is asked to stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import recorder
from recorder import BatchLimitReached, OverflowDetected, Recorder, RecorderError, read
from recorder.dump import read_info
from recorder.schema import Trigger
from tests.recorder.watching import Bomb, forward, hooks_of, trigger_of


def model_with(*bombs: Bomb) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), *bombs, nn.Linear(2, 1))


class Raising(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


def run(model: nn.Module, batches: int) -> None:
    for _ in range(batches):
        model(torch.ones(3, 2)).sum().backward()


def trigger_files(found: Recorder) -> list[tuple[str | None, int | None, str | None]]:
    return [(t.kind, t.batch, t.module) for t in map(trigger_of, found.dumps)]


# on_overflow


def test_raise_dumps_and_raises_at_the_module(tmp_path: Path) -> None:
    model = model_with(Bomb(calls=(1,)))
    recorder = Recorder(model, tmp_path)
    run(model, 1)
    with pytest.raises(OverflowDetected) as caught:
        run(model, 1)
    trigger = caught.value.trigger
    assert (trigger.kind, trigger.batch, trigger.phase, trigger.module) == ("overflow", 1, "forward", "1")
    assert (trigger.role, trigger.key, trigger.call) == ("output", "", 0)
    assert caught.value.dump == recorder.dumps[0]
    rows = read(recorder.dumps[0])
    flagged = rows[rows.seq == trigger.seq].query("flagged")
    assert flagged.role.tolist() == ["output"]
    assert flagged.origin.all()
    assert forward(rows[rows.batch == 1], "2", "output").empty, "the module after it never ran"
    recorder.close()


def test_its_message_says_what_and_where_in_one_line_and_the_command_in_another(tmp_path: Path) -> None:
    with pytest.raises(OverflowDetected) as caught, Recorder(model_with(Bomb()), tmp_path) as recorder:
        run(recorder._hooked.root, 1)
    first, second = str(caught.value).splitlines()
    assert "inf" in first
    assert "batch 0" in first
    assert "Bomb" in first
    assert second.endswith(f"overflight report {caught.value.dump}")


def test_the_frames_around_the_overflow_are_in_its_dump(tmp_path: Path) -> None:
    """The modules that were still running are there too, with what they had received."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Bomb()))
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        run(model, 1)
    rows = read(caught.value.dump or "")
    assert forward(rows, "1", "input", "0").abs_max.notna().all()
    assert forward(rows, "", "input", "0").abs_max.tolist() == [1.0]
    assert forward(rows, "1", "output").empty


def test_warn_dumps_once_for_each_origin_and_goes_on(tmp_path: Path) -> None:
    model = model_with(Bomb(calls=(1, 2, 3)), Bomb(calls=(3,), value=float("nan")))
    with (
        Recorder(model, tmp_path, on_overflow="warn", phases=("forward",)) as recorder,
        pytest.warns(RuntimeWarning, match="overflight report") as caught,
    ):
        run(model, 5)
    assert recorder.batch == 4
    assert trigger_files(recorder) == [("overflow", 1, "1")]
    assert len(caught) == 1
    assert caught[0].category is RuntimeWarning


def test_ignore_records_and_does_nothing_else(tmp_path: Path) -> None:
    model = model_with(Bomb())
    with Recorder(model, tmp_path, on_overflow="ignore") as recorder:
        run(model, 1)
        assert read(recorder.run_dir).flagged.any()
    assert recorder.dumps == []


def test_a_callable_is_given_the_trigger_after_the_dump(tmp_path: Path) -> None:
    seen: list[tuple[Trigger, int]] = []
    model = model_with(Bomb())
    with Recorder(model, tmp_path, on_overflow=lambda trigger: seen.append((trigger, len(found.dumps)))) as found:
        run(model, 1)
    [(trigger, dumps)] = seen
    assert (trigger.module, dumps) == ("1", 1)


def test_an_error_of_the_callable_is_the_users(tmp_path: Path) -> None:
    def stop(trigger: Trigger) -> None:
        raise LookupError(trigger.module)

    model = model_with(Bomb())
    with pytest.raises(LookupError, match="1"), Recorder(model, tmp_path, on_overflow=stop):
        run(model, 1)


def test_an_overflow_is_not_an_exception_to_dump_again(tmp_path: Path) -> None:
    model = model_with(Bomb())
    with pytest.raises(OverflowDetected), Recorder(model, tmp_path) as recorder:
        run(model, 1)
    assert trigger_files(recorder) == [("overflow", 0, "1")]


# tracing and stopping


@pytest.mark.parametrize("phases", [("forward",), ("forward", "backward", "optimizer")], ids=len)
def test_a_traced_batch_is_a_dump_of_its_own_with_all_its_phases(tmp_path: Path, phases: tuple[str, ...]) -> None:
    model = model_with()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Recorder(model, tmp_path, optimizer=optimizer, trace_batches=(1, 3), phases=phases) as recorder:
        for _ in range(5):
            run(model, 1)
            optimizer.step()
    assert trigger_files(recorder) == [("traced_batch", 1, None), ("traced_batch", 3, None)]
    assert [path.name for path in recorder.dumps] == [
        "trace-batch000001-rank0000.parquet",
        "trace-batch000003-rank0000.parquet",
    ]
    for batch, dump in zip((1, 3), recorder.dumps, strict=True):
        rows = read(dump)
        assert set(rows.batch) == {batch}
        assert set(rows.phase) == set(phases)


def test_a_traced_batch_that_outgrows_the_ring_is_whole(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    small, large = (
        Recorder(model, tmp_path, run_id=run_id, trace_batches=(1,), ring_records=records)
        for run_id, records in (("small", 64), ("large", 65536))
    )
    run(model, 3)
    small.close()
    large.close()
    columns = ["phase", "module", "role", "key", "abs_max", "abs_min"]
    one, other = (read(found.dumps[0])[columns].astype(object) for found in (small, large))
    assert len(one) > 64
    pd.testing.assert_frame_equal(one, other)
    assert len(read(small.dumps[0])) == len(one)


def test_an_overflow_in_a_traced_batch_is_found_and_both_are_dumped(tmp_path: Path) -> None:
    model = model_with(Bomb(calls=(1,)))
    with pytest.raises(OverflowDetected), Recorder(model, tmp_path, trace_batches=(1,)) as recorder:
        run(model, 2)
    assert sorted(kind or "" for kind, *_ in trigger_files(recorder)) == ["overflow", "traced_batch"]


def test_the_run_stops_after_the_batch_that_it_is_told(tmp_path: Path) -> None:
    model = model_with()
    with (
        pytest.raises(BatchLimitReached, match="stopped after 3 batches"),
        Recorder(model, tmp_path, abort_after_batch=2, trace_batches=(2,)) as recorder,
    ):
        run(model, 9)
    assert recorder.batch == 2
    assert trigger_files(recorder) == [("traced_batch", 2, None)]


def test_batches_are_chosen_by_a_predicate(tmp_path: Path) -> None:
    model = model_with()
    with Recorder(model, tmp_path, trace_batches=lambda batch: batch % 3 == 1) as recorder:
        run(model, 6)
    assert [batch for _, batch, _ in trigger_files(recorder)] == [1, 4]


# what a user asks of it


def test_batches_and_steps_are_counted(tmp_path: Path) -> None:
    model = model_with()
    optimizer = torch.optim.SGD(model.parameters())
    with Recorder(model, tmp_path, optimizer=optimizer) as recorder:
        assert (recorder.batch, recorder.step) == (0, 0)
        for _ in range(3):
            run(model, 2)  # gradients of two batches are accumulated
            optimizer.step()
        assert (recorder.batch, recorder.step) == (5, 3)
        rows = forward(read(recorder.run_dir), "", "output")
    assert list(zip(rows.batch, rows.step, strict=True)) == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_spill_writes_what_the_ring_holds_now(tmp_path: Path) -> None:
    model = model_with()
    with Recorder(model, tmp_path) as recorder:
        run(model, 2)
        dump = recorder.spill()
        assert recorder.dumps == [dump]
    assert trigger_of(dump).kind == "manual"
    assert set(read(dump).batch) == {0, 1}


def test_the_ring_holds_the_latest_records_and_counts_the_rest(tmp_path: Path) -> None:
    model = model_with()
    with Recorder(model, tmp_path, ring_records=64, phases=("forward",)) as recorder:
        run(model, 30)
        dump = recorder.spill()
    rows = read(dump)
    assert len(rows) == 64
    assert rows.batch.max() == 29
    assert read_info(dump).evicted > 0


def test_a_closed_recorder_says_so(tmp_path: Path) -> None:
    recorder = Recorder(model_with(), tmp_path)
    recorder.close()
    recorder.close()
    for use in (recorder.spill, recorder.__enter__):
        with pytest.raises(RecorderError, match="this recorder is closed"):
            use()


def test_each_run_has_a_directory_of_its_own(tmp_path: Path) -> None:
    recorders = [Recorder(model_with(), tmp_path) for _ in range(3)]
    assert len({found.run_dir for found in recorders}) == 3
    assert all(found.run_dir.parent == tmp_path for found in recorders)
    for found in recorders:
        found.close()
    with Recorder(model_with(), tmp_path, run_id="mine") as named:
        assert named.run_dir == tmp_path / "mine"


def test_the_runs_facts_are_beside_its_dumps(tmp_path: Path) -> None:
    model = model_with()
    with Recorder(model, tmp_path) as recorder:
        run(model, 1)
        dump = recorder.spill()
    info = json.loads((recorder.run_dir / "_run.json").read_text())
    assert info["run_id"] == recorder.run_dir.name
    assert [one["name"] for one in info["modules"]] == ["", "0", "1"]
    assert info["finfo"]["float32"]["max"] == torch.finfo(torch.float32).max
    assert info["versions"]["torch"] == torch.__version__
    assert read_info(dump).run_id == info["run_id"]
    assert 0 < info["overhead"]["share"] < 1


def test_what_ran_beside_the_frames_is_kept(tmp_path: Path) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.body(x).square().mean()}

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    losses = []
    with Recorder(model, tmp_path, optimizer=optimizer) as recorder:
        for training in (True, False):
            model.train(training)
            loss = model(torch.ones(3, 2))["loss"]
            losses.append(loss.item())
            if training:
                loss.backward()
                optimizer.step()
        dump = recorder.spill()
    batches = read_info(dump).batches
    assert [batch.loss for batch in batches] == losses
    assert [batch.training for batch in batches] == [True, False]
    assert [batch.learning_rate for batch in batches] == [0.125, 0.125]
    assert [batch.skipped for batch in batches] == [False, None]


def test_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_with(Bomb(calls=(1,)))
    with pytest.raises(OverflowDetected), Recorder(model, tmp_path, trace_batches=(0,)):
        run(model, 2)
    assert capsys.readouterr() == ("", "")


# what goes wrong in the recorder itself


def test_an_error_of_the_recorders_own_never_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with()
    with Recorder(model, tmp_path) as recorder:
        run(model, 1)
        monkeypatch.setattr(recorder._spiller, "append", lambda _: 1 / 0)
        with pytest.warns(RuntimeWarning, match=r"stopped recording in batch \d: ZeroDivisionError") as caught:
            run(model, 3)
        assert len(caught) == 1
    assert list(hooks_of(model)) == []


def test_a_run_directory_that_is_gone_does_not_fail_the_run(tmp_path: Path) -> None:
    model = model_with()
    recorder = Recorder(model, tmp_path)
    run(model, 1)
    shutil.rmtree(recorder.run_dir)
    with pytest.warns(RuntimeWarning, match="could not finish its run"):
        recorder.close()
    assert list(hooks_of(model)) == []


def test_the_users_exception_is_not_replaced_by_a_finding_that_was_waiting(tmp_path: Path) -> None:
    """In batch mode the overflow is found when the device is read, here as the recorder closes."""
    model = nn.Sequential(Bomb(), Raising(KeyboardInterrupt()))
    with (
        pytest.warns(RuntimeWarning, match="inf in output of 0"),
        pytest.raises(KeyboardInterrupt),
        Recorder(model, tmp_path, check="batch") as recorder,
    ):
        model(torch.ones(2))
    assert {kind for kind, _, _ in trigger_files(recorder)} == {"exception", "overflow"}
    assert list(hooks_of(model)) == []


def test_an_overflow_raises_even_if_the_diagnosis_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.front_end.headline", lambda *_: 1 / 0)
    model = model_with(Bomb())
    message = "inf or nan in output of 1.*\n.*overflight report"
    with pytest.raises(OverflowDetected, match=message), Recorder(model, tmp_path):
        run(model, 1)


def test_a_tensor_that_lies_about_itself_is_recorded_without_numbers(tmp_path: Path) -> None:
    class Lying(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "") == "__get__":
                return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
            raise RuntimeError("no")

    liar = torch.ones(2).as_subclass(Lying)

    class Passes(nn.Module):
        def forward(self, x: torch.Tensor, other: object) -> torch.Tensor:
            return x

    model = nn.ModuleList([Passes()])
    model.forward = lambda x, other: model[0](x, other)
    with Recorder(model, tmp_path) as recorder:
        model(torch.ones(1), liar)
        row = forward(read(recorder.run_dir), "0", "input", "1").iloc[0]
    assert row[["abs_min", "abs_max", "num_nan"]].isna().all()


def test_what_an_open_recorder_has_recorded_can_be_read_from_its_ring(tmp_path: Path) -> None:
    model = model_with()
    with Recorder(model, tmp_path):
        run(model, 1)
        [run_dir] = tmp_path.iterdir()
        assert set(read(run_dir).batch) == {0}


def test_the_public_names_are_handed_on() -> None:
    assert set(recorder.__all__) <= set(dir(recorder))
    assert all(getattr(recorder, name) is not None for name in recorder.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        recorder.nothing  # noqa: B018
    assert isinstance(recorder.__version__, str)
