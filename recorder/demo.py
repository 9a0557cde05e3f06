"""`python -m recorder.demo`: trains a small gated-GELU transformer in fp16 until it overflows by itself.

Nothing is forced: the learning rate is too high for fp16, the blocks amplify what they are given a little more
after every step, and after some healthy batches the last of them passes 65504.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recorder.dump import read_info
from recorder.errors import OverflowDetected
from recorder.reading import read
from recorder.recorder import Recorder
from recorder.verdict import diagnose

VOCABULARY, WIDTH, INNER, HEADS, BLOCKS = 64, 64, 256, 4, 8
SEQUENCES, TOKENS, MOST_BATCHES = 8, 32, 60
SEED, LEARNING_RATE, ADAM_EPS = 2, 1.2e-3, 1e-4  # the default eps of 1e-8 is 0 in fp16


class SelfAttention(nn.Module):
    """Causal attention over (batch, tokens, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return attended


class GatedFeedForward(nn.Module):
    """The gate sees the normalised stream, the values see the stream itself: what is large grows in proportion."""

    def __init__(self) -> None:
        super().__init__()
        self.wi_0 = nn.Linear(WIDTH, INNER, bias=False)
        self.wi_1 = nn.Linear(WIDTH, INNER, bias=False)
        self.gelu = nn.GELU()
        self.wo = nn.Linear(INNER, WIDTH, bias=False)
        with torch.no_grad():  # small values in large sums, so that it is wo's sums that grow out of fp16
            self.wi_1.weight.mul_(0.1)
            self.wo.weight.mul_(8)

    def forward(self, normalised: Tensor, x: Tensor) -> Tensor:
        values: Tensor = self.wo(self.gelu(self.wi_0(normalised)) * self.wi_1(x))
        return values


class Block(nn.Module):
    """Attention and a gated feed-forward, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = SelfAttention()
        self.feed_forward_norm = nn.LayerNorm(WIDTH)
        self.feed_forward = GatedFeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        widened: Tensor = x + self.feed_forward(self.feed_forward_norm(x), x)
        return widened


class GatedGeluTransformer(nn.Module):
    """Token numbers (batch, tokens) to logits (batch, tokens, VOCABULARY)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def counting_tokens(generator: torch.Generator) -> Tensor:
    """Sequences that count on from a random start by a random step: (SEQUENCES, TOKENS + 1)."""
    start = torch.randint(VOCABULARY, (SEQUENCES, 1), generator=generator)
    step = torch.randint(1, 8, (SEQUENCES, 1), generator=generator)
    return (start + step * torch.arange(TOKENS + 1)) % VOCABULARY


def train(log_dir: Path) -> OverflowDetected | None:
    """Train under a recorder; returns the overflow, or None when there was none in MOST_BATCHES."""
    torch.manual_seed(SEED)
    model = GatedGeluTransformer().half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=ADAM_EPS)
    generator = torch.Generator().manual_seed(1)
    try:
        with Recorder(model, log_dir, optimizer=optimizer):
            for batch in range(MOST_BATCHES):
                tokens = counting_tokens(generator)
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
                print(f"batch {batch:2}  loss {loss.item():.3f}", flush=True)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    except OverflowDetected as overflow:
        return overflow
    return None


def report(overflow: OverflowDetected, dump: Path) -> None:
    """Print the message, the verdict, and the dump's path as the last line."""
    print(f"\n{overflow}\n")
    print("\n".join(diagnose(read(dump), read_info(dump)).lines))
    print(f"\n{dump}")


def main(argv: list[str] | None = None) -> int:
    """0 when the overflow was found as intended, 1 when there was none."""
    parser = argparse.ArgumentParser(prog="python -m recorder.demo", description="Train in fp16 until it overflows.")
    parser.add_argument("--log-dir", type=Path, default=Path("runs"), help="where the dump goes (default: runs)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # sums in another order would make another run of it
    overflow = train(options.log_dir)
    if overflow is None or overflow.dump is None:
        print(f"no overflow in {MOST_BATCHES} batches: this machine's fp16 is not like others", file=sys.stderr)
        return 1
    report(overflow, overflow.dump)
    return 0


if __name__ == "__main__":
    sys.exit(main())
