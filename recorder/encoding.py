"""How one record lies in a slot of the ring, and how many slots become one table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recorder.records import Statistics
from recorder.schema import Role

Slots = npt.NDArray[np.void]
"""Shape (n,), dtype SLOT."""

ORIGIN_ROLES = (Role.OUTPUT, Role.GRAD_INPUT)
"""What a module makes, forward and backward: where a bad value of an origin frame was born."""

FLOATS, COUNTS = Statistics._fields[:4], Statistics._fields[4:]

SLOT = np.dtype(
    [
        ("position", "<u8"),  # 1 for the first record ever appended; 0 while the slot is being written
        ("checksum", "<u4"),
        # the same for all records of a frame
        ("batch", "<i8"),
        ("seq", "<i8"),
        ("t_ns", "<i8"),
        ("step", "<u4"),
        ("call", "<i4"),
        ("site", "<u4"),
        # a record's own; what a healthy one has no need of comes last and is 0
        ("place", "<u4"),
        ("flags", "<u4"),
        *((name, "<f8") for name in FLOATS),
        *((name, "<i8") for name in COUNTS),
    ]
)
SLOT_SIZE = SLOT.itemsize
WORDS_PER_SLOT = SLOT_SIZE // 8
PART = 4096
"""Slots that are worked on at a time: so many, and what is made of them, stay in a cache."""

BODY_OFFSET, OWN_OFFSET = 12, 48

# The flags: one bit for each statistic that is null, in the order of Statistics, then the booleans.
NUM_STATISTICS = len(Statistics._fields)
ALL_NULL = (1 << NUM_STATISTICS) - 1
TRAINING = 1 << NUM_STATISTICS
RECOMPUTE = TRAINING << 1
EXPECTED = TRAINING << 2
ORIGIN = TRAINING << 3

# The checksum is linear: the record's own part of the body and the frame's part, each read as one little-endian
# number, and the position, each times a weight, summed modulo a prime. So the frame's part is computed once a frame,
# the zeros that end a healthy record are free, and over many slots it is one exact matrix product; a CRC has none of
# the three. It misses one torn slot in 10^9.
CHECKSUM_PRIME = 1_000_000_007
FRAME_WEIGHT, POSITION_WEIGHT = 739_242_193, 640_320_007
_FRAME_WORDS, _OWN_WORDS = (OWN_OFFSET - BODY_OFFSET) // 2, (SLOT_SIZE - OWN_OFFSET) // 2
_WORD_WEIGHTS = np.array(
    [pow(2, 16 * i, CHECKSUM_PRIME) * FRAME_WEIGHT % CHECKSUM_PRIME for i in range(_FRAME_WORDS)]
    + [pow(2, 16 * i, CHECKSUM_PRIME) for i in range(_OWN_WORDS)],
    np.float64,
)


def checksums(slots: Slots) -> npt.NDArray[np.uint32]:
    """The checksum that each slot should have, shape (n,)."""
    parts = (_checksums(slots[start : start + PART]) for start in range(0, len(slots), PART))
    return np.concatenate([*parts, np.empty(0, np.uint32)])


def _checksums(slots: Slots) -> npt.NDArray[np.uint32]:
    body = slots.view(np.uint8).reshape(-1, SLOT_SIZE)[:, BODY_OFFSET:].view("<u2")
    sums = (body.astype(np.float64) @ _WORD_WEIGHTS).astype(np.int64)  # below 2**53, so float64 is exact
    mixed = (slots["position"] % CHECKSUM_PRIME).astype(np.int64) * POSITION_WEIGHT
    return ((sums + mixed) % CHECKSUM_PRIME).astype(np.uint32)
