"""Random batches for tiny models, with padding and masks: every function takes a seed and gives keyword arguments."""

from __future__ import annotations

import torch
from torch import Tensor

Batch = dict[str, Tensor]

VOCABULARY = 96
ROWS = 3
TOKENS = 12
LABELS = 4
PIXELS = 32
SAMPLES = 800
FRAMES = 40
MELS = 16
IGNORED = -100


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def padding_mask(seed: int, rows: int = ROWS, length: int = TOKENS, left: bool = False) -> Tensor:
    """int64 (rows, length): the first row is full, the others lose up to half of their length."""
    lengths = torch.randint(length // 2, length, (rows, 1), generator=generator_of(seed))
    lengths[0] = length
    mask = (torch.arange(length) < lengths).long()
    return mask.flip(1) if left else mask


def tokens(seed: int, length: int = TOKENS) -> Tensor:
    """int64 (rows, length), never the padding token 0 nor the special ones 1 and 2."""
    return torch.randint(3, VOCABULARY, (ROWS, length), generator=generator_of(seed + 1))


def text(seed: int) -> Batch:
    """Padded tokens whose labels are ignored where there is padding: for encoders and decoders alike."""
    mask, ids = padding_mask(seed), tokens(seed)
    ids = ids * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def text_padded_left(seed: int) -> Batch:
    """As decoders are fed in generation: the first rows of their causal masks see nothing but padding."""
    mask, ids = padding_mask(seed, left=True), tokens(seed)
    ids = ids * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def text_to_classes(seed: int) -> Batch:
    batch = text(seed)
    return {**batch, "labels": torch.randint(LABELS, (ROWS,), generator=generator_of(seed + 2))}


def detection_of_replaced_tokens(seed: int) -> Batch:
    batch = text(seed)
    replaced = torch.randint(2, (ROWS, TOKENS), generator=generator_of(seed + 2))
    return {**batch, "labels": replaced.masked_fill(batch["attention_mask"] == 0, IGNORED)}


def text_to_text(seed: int) -> Batch:
    batch, target = text(seed), text(seed + 3)
    return {**batch, "labels": target["labels"]}


def text_without_mask(seed: int) -> Batch:
    ids = tokens(seed)
    return {"input_ids": ids, "labels": ids}


def images(seed: int) -> Batch:
    return {"pixel_values": torch.randn(ROWS, 3, PIXELS, PIXELS, generator=generator_of(seed))}


def images_to_classes(seed: int) -> Batch:
    return {**images(seed), "labels": torch.randint(LABELS, (ROWS,), generator=generator_of(seed + 1))}


def images_to_maps(seed: int) -> Batch:
    """Class maps with ignored borders."""
    maps = torch.randint(LABELS, (ROWS, PIXELS, PIXELS), generator=generator_of(seed + 1))
    maps[:, :2] = 255
    return {**images(seed), "labels": maps}


def masked_images(seed: int) -> Batch:
    patches = (PIXELS // 8) ** 2
    return {**images(seed), "bool_masked_pos": torch.rand(ROWS, patches, generator=generator_of(seed + 1)) < 0.5}


def images_and_text(seed: int) -> Batch:
    batch = text(seed)
    batch["input_ids"][:, -1] = VOCABULARY - 1  # the end token, whose place some pool at
    return {**images(seed), "input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def speech_to_tokens(seed: int) -> Batch:
    """Waveforms of different lengths, and short targets for a CTC loss."""
    waves = torch.randn(ROWS, SAMPLES, generator=generator_of(seed))
    mask = padding_mask(seed, length=SAMPLES)
    targets = tokens(seed, 4) % 20 + 1
    targets[1, 2:] = IGNORED
    return {"input_values": waves * mask, "attention_mask": mask, "labels": targets}


def speech_to_text(seed: int) -> Batch:
    mels = torch.randn(ROWS, MELS, FRAMES, generator=generator_of(seed))
    return {"input_features": mels, "labels": text(seed)["labels"]}


def spectrogram_to_classes(seed: int) -> Batch:
    spectra = torch.randn(ROWS, FRAMES, MELS, generator=generator_of(seed))
    return {"input_values": spectra, "labels": torch.randint(LABELS, (ROWS,), generator=generator_of(seed + 1))}


def series(seed: int) -> Batch:
    past = torch.randn(ROWS, FRAMES, 2, generator=generator_of(seed))
    return {"past_values": past, "future_values": torch.randn(ROWS, 4, 2, generator=generator_of(seed + 1))}
