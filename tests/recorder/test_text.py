"""The printed report is held against the seed class itself, on the same calls of the same small models.

The records come from a little recorder of this file's own, so that a fault of the real one can't hide a fault here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.debug_utils import DebugUnderflowOverflow as Seed

from recorder.schema import DUMP_SCHEMA, ModuleInfo, RunInfo, Trigger, TriggerKind
from recorder.text import abs_min_max_text, extended_report, hf_report

OVERFLOW = TriggerKind.OVERFLOW.value
TRACED = TriggerKind.TRACED_BATCH.value


class LittleRecorder:
    """Notes every forward call of a model as dump rows, with statistics from plain float64 reference code."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: list[dict[str, Any]] = []
        self.containers: dict[str, dict[str, str]] = {}
        self.modules = {module: name for name, module in model.named_modules()}
        self.model, self.batch, self.seq = model, 0, 0
        for module in self.modules:
            module.register_forward_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        name = self.modules[module]
        self.containers.setdefault(name, {})
        for key, parameter in module.named_parameters(recurse=False):
            self._add(name, module, "parameter", key, parameter)
        for key, buffer in module.named_buffers(recurse=False):
            self._add(name, module, "buffer", key, buffer)
        for position, value in enumerate(args):
            self._open(name, module, "input", str(position), value)
        for key, value in kwargs.items():
            self._open(name, module, "input", key, value)
        self._open(name, module, "output", "", output)
        self.seq += 1
        if module is self.model:
            self.batch += 1

    def _open(self, name: str, module: nn.Module, role: str, key: str, value: Any) -> None:
        children = _children(value)
        if not children:
            self._add(name, module, role, key, value)
            return
        if not isinstance(value, tuple):
            self.containers[name][f"{role}.{key}" if key else role] = type(value).__name__
        for part, child in children:
            self._open(name, module, role, f"{key}.{part}" if key else part, child)

    def _add(self, name: str, module: nn.Module, role: str, key: str, value: Any) -> None:
        row: dict[str, Any] = dict.fromkeys(DUMP_SCHEMA.names)
        row |= {"rank": 0, "batch": self.batch, "seq": self.seq, "phase": "forward", "recompute": False}
        row |= {"module": name, "module_class": type(module).__name__, "role": role, "key": key}
        row |= {"expected": False, "dtype": type(value).__name__}
        if torch.is_tensor(value):
            row |= _measured(value)
        self.rows.append(row)

    @property
    def records(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows, columns=DUMP_SCHEMA.names)

    def info(self, trigger: Trigger | None = None, **settings: Any) -> RunInfo:
        modules = tuple(
            ModuleInfo(name, type(module).__name__, None, order, self.containers.get(name, {}))
            for order, (module, name) in enumerate(self.modules.items())
        )
        return RunInfo("run", trigger=trigger, modules=modules, settings=settings)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (tuple, list)):
        return [(str(i), child) for i, child in enumerate(value)]
    if isinstance(value, dict):
        return list(value.items())
    if dataclasses.is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return []


def _measured(tensor: torch.Tensor) -> dict[str, Any]:
    values = tensor.detach().double().abs()
    finite = values[values.isfinite()]
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": str(tuple(tensor.shape)),
        "numel": tensor.numel(),
        "abs_min": finite.min().item() if finite.numel() else None,
        "abs_max": finite.max().item() if finite.numel() else None,
        "num_nan": int(tensor.isnan().sum()),
        "num_posinf": int(tensor.isposinf().sum()),
        "num_neginf": int(tensor.isneginf().sum()),
    }


@dataclasses.dataclass
class Witness:
    """One model under both recorders."""

    little: LittleRecorder
    printed: Callable[[], str]
    error: ValueError | None = None

    def overflow(self, **settings: Any) -> tuple[pd.DataFrame, RunInfo]:
        last = self.little.rows[-1]
        return self.little.records, self.little.info(Trigger(OVERFLOW, last["batch"], seq=last["seq"]), **settings)

    def traced(self, batch: int) -> tuple[pd.DataFrame, RunInfo]:
        records = self.little.records
        return records[records["batch"] == batch], self.little.info(Trigger(TRACED, batch))


@pytest.fixture
def watch(capsys: pytest.CaptureFixture[str]) -> Callable[..., Witness]:
    """Run a model over batches with the seed and the little recorder on it."""

    def watched(model: nn.Module, batches: list[Any], **seed_arguments: Any) -> Witness:
        witness = Witness(LittleRecorder(model), lambda: capsys.readouterr().out)
        Seed(model, **seed_arguments)
        try:
            for batch in batches:
                model(**batch) if isinstance(batch, dict) else model(batch)
        except ValueError as error:
            witness.error = error
        return witness

    return watched


class Doubler(nn.Module):
    """Multiplies by two in each of its layers, so that it overflows after a known number of calls."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(layers))
        for layer in self.layers:
            layer.weight.data = 2 * torch.eye(3)
        self.half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Gives(nn.Module):
    """Returns what it was told to, whatever it is given."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer


class Calls(nn.Module):
    """Calls its child with these arguments."""

    def __init__(self, child: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.child, self.args, self.kwargs = child, args, kwargs
        self.register_buffer("scale", torch.full((2,), 7.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.child(*self.args, **self.kwargs)
        return x


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


ONES = torch.ones(2)


def small_t5(dtype: torch.dtype) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=40, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).to(dtype)


def token_batches(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    tokens = [torch.randint(1, 40, (2, 6)) for _ in range(count)]
    return [{"input_ids": t, "labels": t} for t in tokens]


def test_an_overflow_deep_in_a_t5_prints_what_the_seed_prints(watch: Callable[..., Witness]) -> None:
    model = small_t5(torch.float16)
    model.decoder.block[1].layer[2].DenseReluDense.wo.weight.data *= 30_000
    witness = watch(model, token_batches(1))
    assert "DenseReluDense.wo Linear" in (printed := witness.printed())
    assert witness.error is not None
    assert hf_report(*witness.overflow()) == printed


def test_traced_batches_print_what_the_seed_prints(watch: Callable[..., Witness]) -> None:
    witness = watch(small_t5(torch.float32), token_batches(5), trace_batch_nums=[1, 3], abort_after_batch_num=3)
    printed = witness.printed()
    assert printed.count("*** Starting batch number=") == 2
    assert hf_report(*witness.traced(1)) + hf_report(*witness.traced(3)) == printed


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 7, 100])
def test_the_window_of_frames_and_the_batch_header_in_it_are_the_seeds(
    watch: Callable[..., Witness], frames: int
) -> None:
    healthy, bad = torch.ones(1, 3).half(), torch.full((1, 3), 30_000.0).half()
    witness = watch(Doubler(2), [healthy, healthy, bad], max_frames_to_save=frames)
    printed = witness.printed()
    assert "batch_number=2" in printed
    assert hf_report(*witness.overflow(max_frames_to_save=frames)) == printed


@pytest.mark.parametrize(
    "values",
    [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, 0.5], [math.inf, -math.inf], [math.nan, math.inf], [math.nan] * 2],
)
def test_a_bad_parameter_prints_what_the_seed_prints(watch: Callable[..., Witness], values: list[float]) -> None:
    model = nn.Sequential(nn.LayerNorm(2))
    model[0].weight.data = torch.tensor(values)
    witness = watch(model, [ONES])
    assert "weight has" in (printed := witness.printed())
    assert hf_report(*witness.overflow()) == printed


def test_bad_values_in_a_traced_batch_are_announced_as_the_seed_announces_them(watch: Callable[..., Witness]) -> None:
    witness = watch(Doubler(3), [torch.full((1, 3), 30_000.0).half()], trace_batch_nums=[0])
    assert "output has infs" in (printed := witness.printed())
    assert hf_report(*witness.traced(0)) == printed


@pytest.mark.parametrize(
    "answer",
    [
        None,
        3,
        "text",
        ONES,
        (),
        [],
        {},
        (ONES, None, 3),
        ((ONES, None), (), ([ONES], (ONES,), (), {"a": ONES})),
        (ONES, [ONES, ONES], {"a": ONES}, Pair(ONES, ONES), []),
        [ONES, (ONES, ONES)],
        {"last_hidden_state": ONES, "past": (ONES, ONES)},
        Pair(ONES, ONES),
        torch.tensor([-5, 7]),
        torch.tensor(2.5),
    ],
    ids=str,
)
def test_every_shape_of_output_prints_as_in_the_seed(watch: Callable[..., Witness], answer: Any) -> None:
    witness = watch(Calls(Gives(answer), ONES), [ONES], trace_batch_nums=[0])
    assert hf_report(*witness.traced(0)) == witness.printed()


@pytest.mark.parametrize(
    "args",
    [(), (None,), (3, "text", ONES), ((ONES, ONES), ONES), ([ONES],), ({"a": ONES},), (Pair(ONES, ONES), ())],
    ids=str,
)
def test_every_shape_of_input_prints_as_in_the_seed(watch: Callable[..., Witness], args: tuple[Any, ...]) -> None:
    witness = watch(Calls(Gives(ONES), *args, mask=ONES, extra=None), [ONES], trace_batch_nums=[0])
    assert hf_report(*witness.traced(0)) == witness.printed()


def test_an_overflow_in_the_roots_own_frame_belongs_to_its_own_batch(watch: Callable[..., Witness]) -> None:
    """The seed has counted on by then and names the next batch; all else is as it prints."""

    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    witness = watch(Adds(), [torch.full((2,), 60_000.0).half()])
    printed = witness.printed()
    assert "batch_number=1" in printed
    assert hf_report(*witness.overflow()) == printed.replace("batch_number=1", "batch_number=0")


@pytest.fixture
def doubled() -> Witness:
    """Two healthy batches and one that overflows in layer 1, under the little recorder alone."""
    model = Doubler(2)
    witness = Witness(LittleRecorder(model), str)
    for value in (1.0, 1.0, 30_000.0):
        model(torch.full((1, 3), value).half())
    return witness


def frames_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.endswith((" Linear", " Doubler"))]


def test_frames_after_the_bad_one_are_not_printed(doubled: Witness) -> None:
    assert frames_of(hf_report(*doubled.overflow()))[-1] == "layers.1"


def test_expected_values_do_not_trip(doubled: Witness) -> None:
    records, info = doubled.overflow()
    assert hf_report(records.assign(expected=True), info) == ""


def test_a_healthy_run_prints_nothing(doubled: Witness) -> None:
    records = doubled.little.records
    assert hf_report(records[records["batch"] < 2], doubled.little.info()) == ""


def test_recomputed_and_backward_frames_are_not_printed(doubled: Witness) -> None:
    records, info = doubled.overflow()
    expected = hf_report(records, info)
    again = records[records["seq"] == 0].assign(seq=-1, recompute=True)
    gradients = records[records["seq"] == 0].assign(seq=-2, phase="backward")
    assert hf_report(pd.concat([gradients, again, records]), info) == expected


def test_a_frame_that_has_not_ended_is_not_printed(doubled: Witness) -> None:
    records, info = doubled.overflow()
    last = records["seq"].max()
    partial = records[~((records["seq"] == last) & (records["role"] == "output"))]
    assert frames_of(hf_report(partial, info)) == frames_of(hf_report(records, info))


def test_a_bad_weight_found_before_the_batch_ran_is_printed_as_the_last_frame(doubled: Witness) -> None:
    records = doubled.little.records
    weights = records[(records["seq"] == 3) & (records["role"] == "parameter")].assign(seq=6, batch=2, num_nan=1)
    info = doubled.little.info(Trigger(OVERFLOW, 2, seq=6, role="parameter", key="weight"))
    text = hf_report(pd.concat([records[records["seq"] < 6], weights]), info)
    assert text.rstrip().endswith("nan      nan weight")
    assert "batch_number=2" in text


def test_a_batch_whose_beginning_was_evicted_gets_no_header(doubled: Witness) -> None:
    records, info = doubled.overflow()
    kept = records.iloc[1:]  # the first frame has lost a row, the second is now the first whole one
    text = hf_report(kept, dataclasses.replace(info, evicted=1))
    assert frames_of(text)[0] == "layers.1"
    assert "batch number=0" not in text
    assert "batch number=1" in text


def test_a_batch_that_was_traced_is_not_reported_again(doubled: Witness) -> None:
    records, info = doubled.overflow(trace_batches=[2])
    assert hf_report(records, info) == ""
    assert hf_report(records, dataclasses.replace(info, settings={"trace_batches": "range(0, 100, 2)"})) == ""


def test_the_window_starts_afresh_after_a_traced_batch(doubled: Witness) -> None:
    records, info = doubled.overflow(trace_batches=[1])
    assert frames_of(hf_report(records, info)) == ["layers.0", "layers.1"]


def test_extended_adds_lines_and_takes_none_away(watch: Callable[..., Witness]) -> None:
    answer = (ONES, ((ONES, {"name": 2 * ONES}), None))
    witness = watch(Calls(Gives(answer), [ONES], mask=3 * ONES, sizes={"a": (ONES, None)}, extra=None), [ONES])
    records, info = witness.traced(0)
    seed_lines, lines = hf_report(records, info).splitlines(), extended_report(records, info).splitlines()
    rest = iter(lines)
    assert all(line in rest for line in seed_lines)
    added = [line[18:] for line in lines if line not in seed_lines]
    assert added == [
        "input[0][0]",
        "input[mask]",
        "input[sizes].a[0]",
        "output[1][0][0]",
        "output[1][0][1].name",
        "scale",
    ]


def test_extended_trips_over_what_only_it_can_see(watch: Callable[..., Witness]) -> None:
    witness = watch(Calls(Gives({"state": torch.tensor([math.inf, 1.0])}), ONES), [ONES])
    records, info = witness.overflow()
    assert hf_report(records, info) == ""
    assert extended_report(records, info).startswith(
        "output.state has infs\n\nDetected inf/nan during batch_number=0\n"
    )


@pytest.mark.parametrize(
    ("numel", "text"), [(0, "            empty"), (4, "     not measured"), (None, "     not measured")]
)
def test_a_tensor_without_numbers_says_why(numel: int | None, text: str) -> None:
    nothing = dict.fromkeys(("abs_min", "abs_max", "num_nan", "num_posinf", "num_neginf"))
    assert abs_min_max_text(nothing, numel) == text
