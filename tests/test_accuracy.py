"""The recorder is quiet on healthy runs, names the very tensor in sick ones, and changes no bit of either.

A small part of `benchmarks/accuracy`, which does the same for all architectures and many more seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from benchmarks.accuracy import healthy, observer, sick
from benchmarks.accuracy.draws import KINDS
from benchmarks.accuracy.models import ARCHITECTURES, architecture
from benchmarks.accuracy.training import Precision, quietly

SOME = ("BERT", "GPT-NeoX", "Llama", "T5", "Qwen2-MoE", "Mamba", "MobileNetV2", "Wav2Vec2")


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with quietly():
        yield


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
@pytest.mark.parametrize("name", SOME)
def test_a_healthy_run_trips_nothing_and_warns_of_nothing(name: str, precision: Precision, tmp_path: Path) -> None:
    health = healthy.watch(architecture(name), precision, tmp_path, steps=2, seed=0)

    assert health.triggers == ()
    assert [warning.text for warning in health.info.warnings] == []
    assert len(health.info.batches) == 3


@pytest.mark.parametrize("seed", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_a_fault_is_named_by_the_trigger_and_by_the_verdict(seed: int, tmp_path: Path) -> None:
    case = sick.draw(seed)

    said = sick.answer(case, tmp_path)

    assert said.is_right(case), sick.describe(case, said)


def test_another_module_another_batch_or_silence_is_no_right_answer() -> None:
    case = sick.draw(0)
    right = (case.batch, case.fault.right[0])
    elsewhere = (case.batch, right[1]._replace(module="elsewhere"))

    assert sick.Answer(right, right).is_right(case)
    assert not sick.Answer(elsewhere, right).is_right(case)
    assert not sick.Answer(right, elsewhere).is_right(case)
    assert not sick.Answer((case.batch + 1, right[1]), right).is_right(case)
    assert not sick.Answer(None, None).is_right(case)


@pytest.mark.parametrize("name", ["GPT-2", "Qwen2-MoE"])
def test_losses_gradients_and_weights_are_the_same_bits_with_the_recorder(name: str, tmp_path: Path) -> None:
    alone = observer.outcome(architecture(name), Precision.FP16, 3, None)
    watched = observer.outcome(architecture(name), Precision.FP16, 3, tmp_path)

    assert watched == alone
    assert watched != observer.outcome(architecture(name), Precision.FP16, 2, None)


def test_the_architectures_are_of_every_kind() -> None:
    families = {one.family for one in ARCHITECTURES}

    assert len({one.name for one in ARCHITECTURES}) >= 70
    assert families >= {"encoder", "decoder", "encoder-decoder", "mixture of experts", "state space", "vision", "audio"}
