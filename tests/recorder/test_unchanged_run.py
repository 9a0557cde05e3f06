"""A run is bit for bit what it is without a recorder, and so are the model and the optimizer after `close`."""

from __future__ import annotations

import copy
import importlib.util
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from recorder import Recorder, read
from tests.recorder.watching import Watch, hooks_of

Attach = Callable[..., object]
Scenario = Callable[[Attach], Any]


def nothing(*_: Any, **__: Any) -> None:
    """Attaches no recorder."""


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def train(model: nn.Module, loss_of: Callable[[], torch.Tensor], attach: Attach, steps: int = 4) -> Any:
    """Losses, gradients and weights of a few steps, and the random state at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    attach(model, optimizer=optimizer)
    seen: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        seen += [loss.detach().clone(), [p.grad.clone() for p in model.parameters() if p.grad is not None]]
        optimizer.step()
    return seen, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


# real architectures


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    ids = torch.randint(99, (2, 7))
    return BertForMaskedLM(config), {"input_ids": ids, "attention_mask": mask, "labels": ids}


def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(99, (2, 7))
    return GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32)), {
        "input_ids": ids,
        "labels": ids,
    }


def t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    ids = torch.randint(1, 99, (2, 7))
    return T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=16, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=37, hidden_dropout_prob=0.1,
    )  # fmt: skip
    return ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 16, 16),
        "labels": torch.tensor([0, 1]),
    }


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
@pytest.mark.parametrize("make", [bert, gpt2, t5, vit], ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", [{}, {"stats": "full", "check": "batch"}], ids=["default", "full"])
def test_a_real_model_trains_to_the_same_bits(
    tmp_path: Path, make: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]], options: dict[str, Any]
) -> None:
    def run(attach: Attach) -> Any:
        torch.manual_seed(0)
        model, batch = make()
        model.train()
        return train(model, lambda: model(**batch).loss, attach)

    recorders: list[Recorder] = []

    def record(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        recorders.append(Recorder(model, tmp_path, optimizer=optimizer, **options))

    bare = run(nothing)
    recorded = run(record)
    assert same(bare, recorded)
    rows = read(recorders[0].run_dir)
    recorders[0].close()
    assert set(rows.phase) == {"forward", "backward", "optimizer"}
    assert set(rows.batch) == {0, 1, 2, 3}


# ways of running a model


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 2))


def under_no_grad(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    with torch.no_grad():
        return model(torch.randn(3, 4))


def under_inference_mode(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    with torch.inference_mode():
        return model(torch.randn(3, 4)).clone()


def with_a_frozen_backbone(attach: Attach) -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    return train(model[3:], lambda: model(torch.randn(3, 4)).square().mean(), lambda _, **k: attach(model, **k))


def with_an_in_place_relu(attach: Attach) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 1))
    return train(model, lambda: model(torch.randn(3, 1, 4, 4)).square().mean(), attach)


def with_tied_weights(attach: Attach) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    model[2].weight = model[0].weight
    return train(model, lambda: model(torch.arange(9)).logsumexp(-1).mean(), attach)


def under_autocast(attach: Attach) -> Any:
    model = mlp()

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: torch.Tensor = model(torch.randn(3, 4)).float().square().mean()
        return out

    return train(model, loss, attach)


def with_a_retained_graph(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return [p.grad for p in model.parameters()]


def with_a_double_backward(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    x = torch.randn(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return [gradient.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def with_autograd_grad(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    return torch.autograd.grad(model(torch.randn(3, 4)).sum(), list(model.parameters()))


class Clip(torch.autograd.Function):
    """Identity whose gradient is clipped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].clamp(-0.01, 0.01)


class Clipping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Clip.apply(x)  # type: ignore[no-untyped-call]
        return out


def with_a_custom_function(attach: Attach) -> Any:
    model = nn.Sequential(mlp(), Clipping())
    return train(model, lambda: model(torch.randn(3, 4)).square().mean(), attach)


def with_a_lazy_module(attach: Attach) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(1))
    attach(model)
    seen = []
    for _ in range(2):
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        seen.append(loss.detach())
    return seen, [type(module).__name__ for module in model], [p.grad for p in model.parameters()]


def with_parametrizations(attach: Attach) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
    )
    return train(model, lambda: model(torch.randn(3, 4)).square().mean(), attach)


def with_hooks_of_the_user(attach: Attach) -> Any:
    """Some are there before the recorder, some come after it; they change what passes, and see each other's work."""
    model = mlp()
    seen: list[torch.Tensor] = []

    def halve(_: nn.Module, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return args[0] / 2

    def shift(_: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().clone())
        return output + 1

    model[1].register_forward_pre_hook(halve)
    model[3].register_forward_hook(shift)
    attach(model)
    model[3].register_forward_hook(shift)
    model[1].register_forward_pre_hook(halve, prepend=True)
    model[0].register_full_backward_hook(lambda *_: None)
    next(model.parameters()).register_hook(lambda gradient: gradient * 3)
    return train(model, lambda: model(torch.randn(3, 4)).square().mean(), nothing), seen


def with_a_checkpoint(reentrant: bool) -> Scenario:
    def scenario(attach: Attach) -> Any:
        model = mlp()

        def loss() -> torch.Tensor:
            hidden = checkpoint(model, torch.randn(3, 4, requires_grad=True), use_reentrant=reentrant)
            assert isinstance(hidden, torch.Tensor)
            return hidden.square().mean()

        return train(model, loss, attach)

    return scenario


def with_an_output_that_is_changed_in_place(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    out = model(torch.randn(3, 4))
    out.mul_(2).clamp_(-1, 1)
    view = out[:, 0]
    view.add_(1)
    out.sum().backward()
    return out.detach(), [p.grad for p in model.parameters()]


def with_saved_tensors_hooks(attach: Attach) -> Any:
    model = mlp()
    attach(model)
    packed: list[tuple[int, ...]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(3, 4)).sum().backward()
    return packed


def under_anomaly_detection(attach: Attach) -> Any:
    model = mlp()
    with torch.autograd.set_detect_anomaly(True):
        return train(model, lambda: model(torch.randn(3, 4)).square().mean(), attach)


def with_functional_call(attach: Attach) -> Any:
    model = mlp().eval()
    attach(model)
    weights = {name: parameter * 2 for name, parameter in model.named_parameters()}
    return torch.func.functional_call(model, weights, (torch.ones(3, 4),)).detach()


def functional_loss(model: nn.Module) -> Callable[[dict[str, torch.Tensor], torch.Tensor], torch.Tensor]:
    return lambda weights, x: torch.func.functional_call(model, weights, (x,)).square().sum()


def with_per_sample_gradients(attach: Attach) -> Any:
    model = mlp().eval()
    attach(model)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return torch.func.vmap(torch.func.grad(functional_loss(model)), (None, 0))(weights, torch.randn(5, 4))


def with_an_ensemble(attach: Attach) -> Any:
    models = [mlp().eval() for _ in range(3)]
    attach(models[0])
    weights, buffers = torch.func.stack_module_state(models)
    call = lambda w, b, x: torch.func.functional_call(models[0], (w, b), (x,))  # noqa: E731
    return torch.func.vmap(call, (0, 0, None))(weights, buffers, torch.randn(2, 4)).detach()


def with_jvp_and_jacrev(attach: Attach) -> Any:
    model = mlp().eval()
    attach(model)
    x = torch.randn(4)
    return torch.func.jvp(model, (x,), (torch.ones(4),)), torch.func.jacrev(model)(x), torch.func.hessian(model)(x)


def with_forward_mode(attach: Attach) -> Any:
    model = mlp().eval()
    attach(model)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(3, 4), torch.ones(3, 4))
        out = torch.autograd.forward_ad.unpack_dual(model(dual))
    return out.primal.detach(), out.tangent.detach()


def with_an_optimizer_that_calls_back(attach: Attach) -> Any:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    attach(model, optimizer=optimizer)
    x = torch.randn(3, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure).detach() for _ in range(2)]


def with_a_gradient_scaler(attach: Attach) -> Any:
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer=optimizer, scaler=scaler)
    seen: list[Any] = []
    for batch in range(4):
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), 1e34 if batch == 1 else 1.0)).mean() ** 2
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        seen.append(scaler.state_dict())
    return seen, [p.detach() for p in model.parameters()]


SCENARIOS: list[Scenario] = [
    under_no_grad,
    under_inference_mode,
    with_a_frozen_backbone,
    with_an_in_place_relu,
    with_tied_weights,
    under_autocast,
    with_a_retained_graph,
    with_a_double_backward,
    with_autograd_grad,
    with_a_custom_function,
    with_a_lazy_module,
    with_parametrizations,
    with_hooks_of_the_user,
    with_an_output_that_is_changed_in_place,
    with_saved_tensors_hooks,
    under_anomaly_detection,
    with_functional_call,
    with_per_sample_gradients,
    with_an_ensemble,
    with_jvp_and_jacrev,
    with_forward_mode,
    with_an_optimizer_that_calls_back,
    with_a_gradient_scaler,
]


@pytest.mark.parametrize(
    "scenario",
    [
        *(pytest.param(scenario, id=scenario.__name__) for scenario in SCENARIOS),
        pytest.param(with_a_checkpoint(True), id="with_a_reentrant_checkpoint"),
        pytest.param(with_a_checkpoint(False), id="with_a_non_reentrant_checkpoint"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*overflight report:RuntimeWarning")
def test_the_run_is_the_same_to_the_bit(scenario: Scenario, tmp_path: Path) -> None:
    recorders: list[Recorder] = []

    def record(model: nn.Module, optimizer: Any = None, scaler: Any = None) -> None:
        recorder = Recorder(model, tmp_path, optimizer=optimizer, scaler=scaler, on_overflow="warn", stats="full")
        recorders.append(recorder)

    torch.manual_seed(0)
    bare = scenario(nothing)
    torch.manual_seed(0)
    recorded = scenario(record)
    assert same(bare, recorded)
    assert len(read(recorders[0].run_dir)) > 0
    recorders[0].close()


# the objects themselves


def state_of(value: Any, seen: set[int]) -> Any:
    """Everything that hangs on an object, as plain data in which objects stand by identity."""
    if id(value) in seen or isinstance(value, (str, int, float, bool, type(None), type)):
        return value if not hasattr(value, "__dict__") else id(value)
    if isinstance(value, torch.Tensor):
        hooks = [getattr(value, name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        kept = [None if found is None else list(found.items()) for found in hooks]
        return id(value), kept, value.requires_grad, state_of(value.__dict__, seen)
    if isinstance(value, dict):
        return type(value).__name__, [(state_of(k, seen), state_of(v, seen)) for k, v in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [state_of(one, seen) for one in value]
    if hasattr(value, "__dict__"):
        seen.add(id(value))
        return id(value), type(value), state_of(vars(value), seen)
    return id(value)


def test_model_optimizer_and_torch_are_as_before_after_close(tmp_path: Path) -> None:
    model = nn.Sequential(mlp(), nn.BatchNorm1d(2), nn.LazyLinear(3))
    model(torch.randn(3, 4))
    next(model[0].children()).register_forward_hook(lambda *_: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loss = model(torch.randn(3, 4)).sum()
    loss.backward()
    optimizer.step()

    def everything() -> Any:
        module, step = sys.modules["torch.nn.modules.module"], sys.modules["torch.optim.optimizer"]
        of_torch = [value for name, value in vars(module).items() if name.startswith("_global")]
        of_steps = [value for name, value in vars(step).items() if name.startswith("_global")]
        return (
            state_of([*(vars(one) for one in (*model.modules(), optimizer))], set()),
            [list(value.items()) if isinstance(value, dict) else value for value in of_torch + of_steps],
            sys.excepthook,
        )

    before = everything()
    with Recorder(model, tmp_path, optimizer=optimizer):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
        assert everything() != before
    assert everything() == before


def test_two_recorders_of_one_model_do_not_disturb_each_other(tmp_path: Path) -> None:
    model = mlp()
    first = Recorder(model, tmp_path, run_id="first")
    second = Recorder(model, tmp_path, run_id="second")
    model(torch.ones(3, 4))
    assert set(read(first.run_dir).batch) == {0}
    first.close()
    model(torch.ones(3, 4))
    assert set(read(second.run_dir).batch) == {0, 1}
    second.close()
    assert list(hooks_of(model)) == []


# copies of a model that is being recorded


def test_a_deep_copy_is_not_recorded_and_runs_as_the_original(recording: Watch) -> None:
    model = mlp().eval()
    recording(model)
    twin = copy.deepcopy(model)
    twin(torch.ones(3, 4))
    assert recording.rows().empty
    assert torch.equal(twin(torch.ones(3, 4)), model(torch.ones(3, 4)))


def test_a_pickled_model_is_not_recorded(recording: Watch) -> None:
    model = mlp().eval()
    recording(model)
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(torch.ones(3, 4)), model(torch.ones(3, 4)))
    assert set(recording.rows().batch) == {0}


def test_a_state_dict_is_the_same(recording: Watch) -> None:
    model = mlp()
    before = model.state_dict()
    recording(model)
    assert same(dict(before), dict(model.state_dict()))
    model.load_state_dict(before)


def test_a_saved_model_loads_where_there_is_no_overflight(recording: Watch, tmp_path: Path) -> None:
    model = mlp().eval()
    recording(model)
    loss = model(torch.ones(3, 4)).sum()
    loss.backward()
    torch.save(model, tmp_path / "model.pt")
    script = (
        "import sys, torch; sys.modules['recorder'] = None\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "loss = model(torch.ones(3, 4)).sum(); loss.backward(); print(loss.item())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == ""
    assert float(done.stdout) == loss.item()


def _run_in_child(model: nn.Module, answer: Any) -> None:
    torch.set_num_threads(1)
    out = [model(x) for x in (torch.ones(3, 4), torch.full((3, 4), float("inf")))]
    answer.send(out[0].detach().tolist())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_process_runs_the_model_and_records_nothing(recording: Watch, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    model = mlp().eval()
    watching = recording(model)
    expected = model(torch.ones(3, 4))
    before = recording.rows()
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_run_in_child, args=(model, theirs))  # type: ignore[attr-defined]
    child.start()
    assert ours.poll(120)
    answer = ours.recv()
    child.join()
    assert child.exitcode == 0
    assert answer == expected.tolist()
    assert recording.rows().equals(before)
    assert list(watching.run_dir.glob("*.parquet")) == []
    model(torch.ones(3, 4))
    assert set(recording.rows().batch) == {0, 1}


# compilers of models, other than torch.compile


def test_an_exported_program_holds_nothing_of_the_recorder(recording: Watch) -> None:
    model = mlp().eval()
    for strict in (False, True):
        bare = torch.export.export(model, (torch.ones(3, 4),), strict=strict).graph_module.code
        recording(model)
        exported = torch.export.export(model, (torch.ones(3, 4),), strict=strict)
        recording.close()
        assert "overflight" not in str(exported.graph)
        assert exported.graph_module.code == bare


def test_a_traced_model_holds_nothing_of_the_recorder(recording: Watch) -> None:
    model = mlp().eval()
    bare = torch.jit.trace(model, (torch.ones(3, 4),))
    recording(model)
    traced = torch.jit.trace(model, (torch.ones(3, 4),))
    assert traced.code == bare.code
    kinds = [[node.kind() for node in one.inlined_graph.nodes()] for one in (traced, bare)]
    assert kinds[0] == kinds[1]
    assert torch.equal(traced(torch.ones(3, 4)), model(torch.ones(3, 4)))


def test_a_scripted_model_holds_nothing_of_the_recorder(recording: Watch) -> None:
    model = mlp().eval()
    bare = torch.jit.script(model)
    recording(model)
    scripted = torch.jit.script(model)
    assert scripted.code == bare.code
    assert list(hooks_of(scripted)) == []
    box = io.BytesIO()
    torch.jit.save(scripted, box)
    box.seek(0)
    assert torch.equal(torch.jit.load(box)(torch.ones(3, 4)), model(torch.ones(3, 4)))
    assert set(recording.rows().batch) == {0}


def test_a_hook_of_the_users_is_scripted_as_before(recording: Watch) -> None:
    def double(self: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output * 2

    double.__annotations__ = {"args": tuple[torch.Tensor], "output": torch.Tensor, "return": torch.Tensor}
    model = nn.Sequential(nn.Linear(4, 2))
    recording(model)
    model[0].register_forward_hook(double)
    assert torch.equal(torch.jit.script(model)(torch.ones(3, 4)), model(torch.ones(3, 4)))


def test_a_model_that_holds_scripted_modules_is_recorded(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.ReLU())))
    expected = model(torch.ones(3, 4))
    recording(model)
    assert torch.equal(model(torch.ones(3, 4)), expected)
    rows = recording.rows()
    assert {"", "0", "1"} <= set(rows.module)
    recording.close()
    assert list(hooks_of(model)) == []
    assert torch.equal(model(torch.ones(3, 4)), expected)


def test_nothing_of_a_closed_recorder_is_kept_alive(tmp_path: Path) -> None:
    """A model that outlives its recorder holds on to none of it, and a recorder holds on to no closed model."""
    import gc
    import weakref

    model = mlp()
    recorder = Recorder(model, tmp_path)
    model(torch.ones(3, 4)).sum().backward()
    recorder.close()
    reference, model_reference = weakref.ref(recorder), weakref.ref(model)
    del recorder
    gc.collect()
    assert reference() is None
    del model
    gc.collect()
    assert model_reference() is None


def test_graphs_and_activations_are_freed_as_before(tmp_path: Path) -> None:
    """The recorder keeps no activation of a batch alive once the user has let go of it."""
    import gc
    import weakref

    kept: list[weakref.ref[torch.Tensor]] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
    with Recorder(model, tmp_path):
        model[1].register_forward_hook(lambda _, args, output: kept.extend((weakref.ref(args[0]), weakref.ref(output))))
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        del loss
        gc.collect()
        assert [reference() for reference in kept] == [None, None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_of_a_data_loader_do_not_close_the_recorder(recording: Watch) -> None:
    model = mlp().eval()
    recording(model)
    rows: Any = torch.ones(4, 4)
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=1)
    for batch in loader:
        model(batch)
    assert set(recording.rows().batch) == {0, 1}


def test_parameters_can_be_swapped_while_a_recorder_watches(recording: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module.to` swaps the parameters of subclasses (DTensor, say), and refuses what has a weak reference."""
    monkeypatch.setattr("torch.__future__._swap_module_params_on_conversion", True)
    model = mlp()
    recording(model)
    model(torch.ones(3, 4)).sum().backward()
    assert model.double()(torch.ones(3, 4).double()).dtype is torch.float64


def test_batched_gradients_are_as_before_and_recording_goes_on(recording: Watch) -> None:
    model, x = mlp().eval(), torch.ones(1, 4, requires_grad=True)

    def jacobian() -> torch.Tensor:
        y = model(x)[0]
        return torch.autograd.grad(y, x, torch.eye(len(y)), is_grads_batched=True)[0]

    expected = jacobian()
    recording(model)
    assert torch.equal(jacobian(), expected)
    model(x)
    assert set(recording.rows().batch) == {0, 1}


def test_what_the_model_has_let_go_of_is_freed(tmp_path: Path) -> None:
    """Modules and parameters that were replaced, an input that requires a gradient, a callback's error."""
    import gc
    import weakref

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with Recorder(model, tmp_path):
        gone: list[weakref.ref[Any]] = []
        for _ in range(3):
            x = torch.ones(1, 4, requires_grad=True)
            gone += [weakref.ref(model[1]), weakref.ref(model[0].weight), weakref.ref(x)]
            model(x).sum().backward()
            model[1], model[0].weight = nn.Linear(4, 4), nn.Parameter(torch.eye(4))
            del x
        model(torch.ones(1, 4))
        gc.collect()
        assert [reference() for reference in gone] == [None] * 9


def test_a_root_that_is_never_called_lets_go_of_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.gradients._MANY_TENSORS", 8)
    model = nn.ModuleDict({"inner": mlp()})
    with Recorder(model, tmp_path) as recorder:
        assert recorder._gradients is not None
        watch = recorder._gradients._watch
        watch._prune_at = 8
        for _ in range(20):
            model["inner"](torch.ones(3, 4)).sum().backward()
        assert len(watch._tensors) <= 32
