"""The faults of `transformers.debug_utils.DebugUnderflowOverflow` that must not come back: one test each.

Each holds for the Recorder and for the drop-in. What only the Recorder does (backward, optimizer, underflow) is in
test_gradients.py, test_optimizer.py and test_silent.py; compiled models are in test_compiled.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recorder import OverflowDetected
from recorder.dump import read_info
from tests.recorder.watching import Bomb, Watch, forward, hooks_of, trigger_of

INF, NAN = float("inf"), float("nan")


class Call(nn.Module):
    """Runs a function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Root(nn.Module):
    """Calls its one child and returns what the child returned."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.child(*args, **kwargs)


@dataclass
class Output:
    """What a model returns, as a dataclass."""

    hidden: torch.Tensor
    aux: Any = None


def model_output(bad: torch.Tensor) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutput(last_hidden_state=torch.ones(2), hidden_states=(torch.ones(2), bad))


# what the seed misses


@pytest.mark.parametrize(
    ("wrap", "key"),
    [
        (lambda bad: {"loss": torch.ones(1), "logits": bad}, "logits"),
        (lambda bad: [torch.ones(1), bad], "1"),
        (model_output, "hidden_states.1"),
        (lambda bad: Output(torch.ones(1), {"scores": [bad]}), "aux.scores.0"),
        (lambda bad: (torch.ones(1), (torch.ones(1), (None, (bad,)))), "1.1.1.0"),
    ],
    ids=["dict", "list", "ModelOutput", "dataclass", "deep tuple"],
)
def test_an_inf_inside_a_container_is_found(watch: Watch, wrap: Callable[[torch.Tensor], Any], key: str) -> None:
    model = Root(Call(lambda x: wrap(x / 0)))
    watch(model)
    with pytest.raises(OverflowDetected) as caught:
        model(torch.ones(3))
    trigger = caught.value.trigger
    assert (trigger.module, trigger.role, trigger.key) == ("child", "output", key)


def test_keyword_arguments_are_seen(watch: Watch) -> None:
    model = Root(Call(lambda x, scale, extra: x * scale + extra["bias"]))
    watch(model)
    model(torch.ones(3), scale=torch.full((3,), 4.0), extra={"bias": torch.full((3,), -5.0)})
    rows = watch.rows()
    assert forward(rows, "child", "input", "scale").abs_max.tolist() == [4.0]
    assert forward(rows, "child", "input", "extra.bias").abs_max.tolist() == [5.0]


def test_a_bad_keyword_argument_is_named(watch: Watch) -> None:
    model = Root(Call(lambda x, scale: x * scale))
    watch(model)
    with pytest.raises(OverflowDetected) as caught:
        model(torch.ones(3), scale=torch.tensor([1.0, NAN, 1.0]))
    assert (caught.value.trigger.role, caught.value.trigger.key) == ("input", "scale")


def test_buffers_are_seen(watch: Watch) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    watch(model)
    model(torch.randn(4, 3))
    rows = watch.rows()
    assert set(rows[(rows.module == "0") & (rows.role == "buffer")].key) >= {"running_mean", "running_var"}


def test_modules_that_are_added_later_are_seen(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    watch(model)
    model(torch.ones(1, 3))
    model.append(nn.Linear(3, 3))
    model(torch.ones(1, 3))
    assert forward(watch.rows(), "1", "output").batch.tolist() == [1]


def test_a_module_that_takes_anothers_place_is_seen_in_its_stead(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    watch(model)
    model(torch.ones(1, 3))
    model[0] = Root(nn.Linear(3, 3))
    model(torch.ones(1, 3))
    rows = watch.rows()
    assert forward(rows, "0", "output").module_class.tolist() == ["Linear", "Root"]
    assert forward(rows, "0.child", "output").batch.tolist() == [1]


# what makes the seed raise a false alarm


def causal_mask() -> torch.Tensor:
    return torch.full((4, 4), -INF).triu(1)


class MaskBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", causal_mask())

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        mask = self.mask
        assert isinstance(mask, torch.Tensor)
        return (scores + mask).softmax(-1)


class MaskedScores(nn.Module):
    """The masked scores leave the module that masks, and the softmax is a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.masking = Call(lambda scores, mask: scores.masked_fill(mask, -INF))
        self.softmax = nn.Softmax(-1)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.softmax(self.masking(scores, torch.ones(4, 4, dtype=torch.bool).triu(1)))
        return out


@pytest.mark.parametrize(
    ("model", "arguments", "keywords"),
    [
        (Root(Call(lambda x, mask: (x + mask).softmax(-1))), (causal_mask(),), {}),
        (Root(Call(lambda x, mask: (x + mask).softmax(-1))), (), {"mask": causal_mask()}),
        (Root(MaskBuffer()), (), {}),
        (Root(MaskedScores()), (), {}),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (causal_mask(),), {}),
    ],
    ids=["positional", "keyword", "buffer", "masked scores", "attention"],
)
def test_an_additive_mask_of_minus_inf_aborts_no_healthy_run(
    watch: Watch, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    watch(model)
    for _ in range(2):
        assert model(torch.randn(4, 4), *arguments, **keywords).isfinite().all()
    assert watch.dumps == []
    rows = watch.rows()
    assert rows.flagged.any(), "the mask was recorded"
    assert rows[rows.flagged].expected.all(), "and known as legitimate"


# what crashes the seed


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.tensor([1.0, -7.0]), torch.tensor([2.0])], layout=torch.jagged)


def fp4() -> torch.Tensor:
    return torch.tensor([0x12, 0x7F], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([0.5, -3.0]), 0.5, 0, torch.qint8)


def fp8(dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor([0.5, 4.0]).to(dtype)


def of(dtype: torch.dtype, *values: float) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor(values).to(dtype)


ODD_TENSORS: list[tuple[str, Callable[[], torch.Tensor], float | None, float | None]] = [
    ("empty", lambda: torch.empty(0, 4), None, None),
    ("scalar", lambda: torch.tensor(-2.5), 2.5, 2.5),
    ("bool", lambda: torch.tensor([True, False]), 0.0, 1.0),
    ("float8_e4m3fn", fp8(torch.float8_e4m3fn), 0.5, 4.0),
    ("float8_e5m2", fp8(torch.float8_e5m2), 0.5, 4.0),
    ("float8_e4m3fnuz", fp8(torch.float8_e4m3fnuz), 0.5, 4.0),
    ("float8_e5m2fnuz", fp8(torch.float8_e5m2fnuz), 0.5, 4.0),
    ("float8_e8m0fnu", fp8(torch.float8_e8m0fnu), 0.5, 4.0),
    ("float4_e2m1fn_x2", fp4, 0.5, 6.0),
    ("sparse_coo", lambda: torch.tensor([[0.0, -9.0], [3.0, 0.0]]).to_sparse(), 0.0, 9.0),
    ("sparse_csr", lambda: torch.tensor([[0.0, -9.0], [3.0, 0.0]]).to_sparse_csr(), 0.0, 9.0),
    ("quantized", quantized, 0.5, 3.0),
    ("meta", lambda: torch.empty(3, device="meta"), None, None),
    ("nested", nested, 1.0, 7.0),
    ("complex64", lambda: torch.tensor([3 + 4j, 1j]), 1.0, 5.0),
    ("uint8", of(torch.uint8, 200, 1), 1.0, 200.0),
    ("uint16", of(torch.uint16, 60000, 1), 1.0, 60000.0),
    ("uint32", lambda: torch.tensor([4_000_000_000, 1]).to(torch.uint32), 1.0, 4e9),
    ("uint64", lambda: torch.tensor([2**40, 1]).to(torch.uint64), 1.0, float(2**40)),
    ("int8 -128", of(torch.int8, -128, 3), 3.0, 128.0),
    ("int64 minimum", lambda: torch.tensor([-(2**63), 1]), 1.0, float(2**63)),
    ("expanded", lambda: torch.tensor([[-2.0]]).expand(5, 7), 2.0, 2.0),
    ("transposed", lambda: torch.arange(1.0, 7.0).view(2, 3).t(), 1.0, 6.0),
]


@pytest.mark.parametrize(
    ("make", "smallest", "largest"), [case[1:] for case in ODD_TENSORS], ids=[case[0] for case in ODD_TENSORS]
)
def test_no_tensor_crashes_it(
    watch: Watch, make: Callable[[], torch.Tensor], smallest: float | None, largest: float | None
) -> None:
    model = Root(Call(lambda x, also: [x, also]))
    model.register_buffer("odd", make())
    watch(model)
    model(make(), also=make())
    rows = watch.rows()
    for role, key in (("input", "0"), ("input", "also"), ("output", "0"), ("output", "1"), ("buffer", "odd")):
        row = forward(rows, "", role, key).iloc[0]
        found = (row.abs_min, row.abs_max)
        assert [None if number != number else number for number in found] == [smallest, largest], (role, key)
        assert not row.flagged
    assert watch.dumps == []


@pytest.mark.parametrize("value", [None, 3, "text", (), {}, torch.float16], ids=repr)
def test_what_is_no_tensor_is_a_row_with_its_type_and_no_numbers(watch: Watch, value: object) -> None:
    model = Root(Call(lambda x, other: other))
    watch(model)
    model(torch.ones(2), value)
    row = forward(watch.rows(), "child", "input", "1").iloc[0]
    assert row["dtype"] == type(value).__name__
    assert row[["abs_min", "abs_max", "numel", "num_nan", "shape"]].isna().all()


class Net(nn.Module):
    """A model whose `body.1` overflows for a large input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), Call(torch.exp))
        self.head = nn.Linear(4, 1)
        nn.init.eye_(self.body[0].weight)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def replica_of(model: nn.Module) -> nn.Module:
    """What torch.nn.parallel.replicate makes of a model for each device, on the CPU."""
    twins: dict[nn.Module, nn.Module] = {m: m._replicate_for_data_parallel() for m in model.modules()}
    for module, twin in twins.items():
        for name, child in module._modules.items():
            if child is not None:
                twin._modules[name] = twins[child]
        for name, parameter in module._parameters.items():
            if parameter is not None:
                setattr(twin, name, parameter.clone())
    return twins[model]


def test_replicas_of_data_parallel_are_recorded_under_the_names_of_the_originals(watch: Watch) -> None:
    model = Net()
    watch(model)
    for shard in torch.rand(4, 4).chunk(2):
        replica_of(model)(shard)
    assert set(watch.rows().module) == {"", "body", "body.0", "body.1", "head"}
    with pytest.raises(OverflowDetected) as caught:
        replica_of(model)(torch.full((2, 4), 200.0))
    assert caught.value.trigger.module == "body.1"


def test_a_class_that_fsdp2_renamed_keeps_its_users_name(watch: Watch) -> None:
    """fully_shard(linear) turns its class into FSDPLinear(FSDPModule, Linear)."""
    model = nn.Sequential(nn.Linear(3, 3))
    fsdp_module = type("FSDPModule", (), {})
    model[0].__class__ = type("FSDPLinear", (fsdp_module, nn.Linear), {})
    watch(model)
    model(torch.ones(1, 3))
    assert forward(watch.rows(), "0", "output").module_class.tolist() == ["Linear"]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """This process as the one rank of a group."""
    if not torch.distributed.is_available():
        pytest.skip("needs torch.distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sharded(model: nn.Sequential) -> nn.Module:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    fsdp.fully_shard(model[1], mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, sharded], ids=["DDP", "FSDP2"])
def test_a_distributed_model_is_recorded_under_the_users_names(watch: Watch, wrap: Callable[[Any], nn.Module]) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU(), nn.Linear(4, 4)), Bomb(calls=(2,)))
    model = wrap(plain)
    before = len(list(hooks_of(model)))
    watching = watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    rows = watch.rows()
    names = {"": "Sequential", "0": "Linear", "1": "Sequential", "1.0": "GELU", "1.1": "Linear", "2": "Bomb"}
    assert dict(zip(rows.module, rows.module_class, strict=True)) == names
    weights = forward(rows, "1.1", "parameter", "weight")
    assert weights["shape"].tolist() == ["(4, 4)"] * 2
    assert weights.abs_max.notna().all()
    with pytest.raises(OverflowDetected) as caught:
        model(torch.ones(2, 4))
    assert caught.value.trigger.module == "2"
    watching.close()
    assert len(list(hooks_of(model))) == before


# what the seed counts and keeps wrongly


def test_the_ring_stays_bounded_after_a_traced_batch(watch: Watch) -> None:
    """The seed keeps every frame in a list from its first traced batch on, and prints all of them."""
    model = nn.Sequential(nn.Linear(3, 3), Bomb(calls=(40,)))
    watching = watch(model, trace_batches=(0,))
    [ring] = watching.run_dir.glob("*.ring")
    size = ring.stat().st_size
    for _ in range(40):
        model(torch.ones(1, 3))
    with pytest.raises(OverflowDetected):
        model(torch.ones(1, 3))
    assert ring.stat().st_size == size


def test_the_drop_in_prints_no_more_frames_than_asked_after_a_traced_batch(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    if watch.kind == "Recorder":
        pytest.skip("the Recorder prints nothing")
    model = nn.Sequential(nn.Linear(3, 3), Bomb(calls=(40,)))
    watch(model, trace_batches=(0,))
    for _ in range(40):
        model(torch.ones(1, 3))
    capsys.readouterr()
    with pytest.raises(OverflowDetected):
        model(torch.ones(1, 3))
    printed = capsys.readouterr().out
    assert "Last 21 forward frames:" in printed
    assert printed.count("Linear\n") + printed.count("Bomb\n") + printed.count("Sequential\n") == 21


def test_a_caught_overflow_does_not_make_the_next_batches_bad(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Bomb(calls=(1, 4)))
    watch(model)
    tripped = []
    for batch in range(6):
        try:
            model(torch.ones(1, 3))
        except OverflowDetected as overflow:
            tripped.append((batch, overflow.trigger.batch, overflow.trigger.module))
    assert tripped == [(1, 1, "1"), (4, 4, "1")]
    assert [trigger_of(dump).batch for dump in watch.dumps] == [1, 4]


def test_hooks_are_taken_off(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    watching = watch(model)
    model(torch.ones(1, 3)).sum().backward()
    assert list(hooks_of(model))
    watching.close()
    assert list(hooks_of(model)) == []
    model(torch.full((1, 3), INF))
    assert watch.dumps == []


def test_an_overflow_in_the_roots_own_frame_is_of_that_batch(watch: Watch) -> None:
    class Loss(Root):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.child(x)
            return hidden / (hidden - 1.0).abs().sum()

    model = Loss(nn.Identity())
    watch(model)
    model(torch.full((2,), 2.0))
    with pytest.raises(OverflowDetected) as caught:
        model(torch.ones(2))
    assert (caught.value.trigger.batch, caught.value.trigger.module) == (1, "")


def test_a_module_shared_by_two_parents_has_one_frame_a_call_under_the_path_that_runs(watch: Watch) -> None:
    class Twice(Root):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.child(self.child(x))
            return out

    shared = nn.Linear(3, 3)
    model = nn.Sequential(Root(shared), Twice(shared))
    watch(model)
    for _ in range(2):
        model(torch.ones(1, 3))
    rows = watch.rows()
    outputs = rows[(rows.module_class == "Linear") & (rows.role == "output")]
    assert list(zip(outputs.batch, outputs.module, outputs.call, strict=True)) == [
        (batch, *frame) for batch in range(2) for frame in [("0.child", 0), ("1.child", 0), ("1.child", 1)]
    ]


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_recomputation_is_marked_and_is_no_batch(watch: Watch, reentrant: bool) -> None:
    class Checkpointed(Root):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self.child, x, use_reentrant=reentrant)
            return out

    # a non-reentrant checkpoint breaks off in its last module, as soon as it has the tensors that it needs
    model = nn.Sequential(nn.Linear(3, 3), Checkpointed(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))))
    watching = watch(model)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    rows = watch.rows()
    outputs = forward(rows, "1.child.0", "output")
    assert list(zip(outputs.batch, outputs.recompute, strict=True)) == [(0, False), (0, True), (1, False), (1, True)]
    assert not forward(rows, "0", "output").recompute.any()
    assert (watching.batch if watch.kind == "Recorder" else watching.batch_number) == 1  # type: ignore[union-attr]


def test_a_checkpointed_root_counts_its_recomputation_as_no_batch(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    watch(model)
    for _ in range(2):
        checkpoint(model, torch.ones(1, 3, requires_grad=True), use_reentrant=False).sum().backward()
    rows = forward(watch.rows(), "0", "output")
    assert list(zip(rows.batch, rows.recompute, strict=True)) == [(0, False), (0, True), (1, False), (1, True)]


def test_passes_of_evaluation_are_told_from_training(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    watch(model)
    for training in (True, False, True):
        model.train(training)
        model(torch.ones(1, 3))
    assert forward(watch.rows(), "", "output").training.tolist() == [True, False, True]


def test_someone_elses_exception_keeps_the_ring(watch: Watch) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("not ours")

    model = nn.Sequential(nn.Linear(3, 3), Root(Call(fails)))
    with pytest.raises(KeyError, match="not ours"), watch(model):
        model(torch.ones(1, 3))
    [dump] = watch.dumps
    trigger = trigger_of(dump)
    assert (trigger.kind, trigger.batch, trigger.module) == ("exception", 0, "1.child")
    assert forward(watch.rows(), "0", "output").batch.tolist() == [0]


def test_the_call_stack_is_sound_after_an_exception_that_was_caught(watch: Watch) -> None:
    def fails_once(x: torch.Tensor) -> torch.Tensor:
        failures.append(x)
        if len(failures) == 1:
            raise KeyboardInterrupt
        return x

    failures: list[torch.Tensor] = []
    model = nn.Sequential(Root(Call(fails_once)))
    watching = watch(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 3))
    model(torch.ones(1, 3))
    assert watching.dumps == []
    assert forward(watch.rows(), "0.child", "output")[["batch", "call"]].to_numpy().tolist() == [[1, 0]]


def test_ranks_do_not_interleave(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rank has files of its own; and what the drop-in prints, it prints in one piece."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    pieces: list[str] = []
    monkeypatch.setattr("sys.stdout", type("Pieces", (io.StringIO,), {"write": lambda _, text: pieces.append(text)})())
    model = nn.Sequential(Bomb())
    watch(model)
    with pytest.raises(OverflowDetected):
        model(torch.ones(3))
    [dump] = watch.dumps
    assert dump.name == "overflow-batch000000-rank0003.parquet"
    assert read_info(dump).world_size == 4
    assert set(watch.rows()["rank"]) == {3}
    assert len([piece for piece in pieces if piece]) == (0 if watch.kind == "Recorder" else 1)


def graph_of(tensor: torch.Tensor) -> list[str]:
    """The names of all nodes of the autograd graph behind a tensor."""
    nodes, names = [tensor.grad_fn], []
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.append(node.name())
            nodes += [function for function, _ in node.next_functions]
    return sorted(names)


def test_nothing_is_added_to_the_autograd_graph(watch: Watch) -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def run() -> tuple[list[str], int]:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(torch.ones(2, 3)).square().mean()
        return graph_of(loss), len(kept)

    model = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 1))
    bare = run()
    watch(model)
    assert run() == bare
