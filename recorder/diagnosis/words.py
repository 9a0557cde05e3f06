"""Numbers, names and places in plain words, short enough for a line."""

from __future__ import annotations

from collections.abc import Iterable

from recorder.diagnosis.rows import Value

LINE = 138
NAME = 72


def number(value: float | None) -> str:
    """Three significant digits: "6.55e+04", "150", "0.0012"."""
    return "unknown" if value is None else f"{value:.3g}"


def count(amount: int, noun: str) -> str:
    """ "1 frame", "1,200 frames"."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def shortened(name: str, width: int = NAME) -> str:
    """A long name with its middle left out; the end says more than the beginning."""
    if len(name) <= width:
        return name
    head = width // 3
    return f"{name[:head]}...{name[len(name) - (width - head - 3) :]}"


def module_name(name: str, width: int = NAME) -> str:
    return shortened(name, width) if name else "the model itself"


def with_class(value: Value, width: int = NAME) -> str:
    """ "encoder.wo (Linear)"."""
    kind = f" ({shortened(value.module_class, 30)})" if value.module_class else ""
    return module_name(value.module, width) + kind


def tensor_name(role: str, key: str) -> str:
    """ "output", "input 0", "gradient weight", in the words of the dump."""
    role = role or "a value"
    return f"{role} {shortened(key, 30)}" if key else role


def kind_of(value: Value) -> str:
    """What is wrong with it: "nan", "inf", "-inf", or two of them."""
    signs = [("nan", value.num_nan), ("inf", value.num_posinf), ("-inf", value.num_neginf)]
    found = [name for name, amount in signs if amount]
    if not found:
        return "a non-finite value"
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def place(value: Value, width: int = NAME) -> str:
    """ "output of encoder.wo (Linear), forward, batch 12, step 12"."""
    call = f", call {value.call}" if value.call > 0 else ""
    step = f", step {value.step}" if value.step >= 0 else ""
    batch = f", batch {value.batch}" if value.batch >= 0 else ""
    return f"{tensor_name(value.role, value.key)} of {with_class(value, width)}, {value.phase}{batch}{step}{call}"


def relative(name: str, to: str) -> str:
    """A module's name without the levels that it shares with another's."""
    own, other = name.split("."), to.split(".")
    shared = 0
    while shared < min(len(own) - 1, len(other)) and own[shared] == other[shared]:
        shared += 1
    return shortened(".".join(own[shared:]), 24) or "root"


def listed(items: Iterable[str], limit: int = 3, total: int | None = None) -> str:
    """ "a, b, c and 4 more"; `total` where there are more than the items given."""
    names = list(items)
    rest = (len(names) if total is None else total) - min(len(names), limit)
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def line(text: str) -> str:
    """A line that fits, cut at a word if it must be."""
    text = " ".join(text.split())
    if len(text) <= LINE:
        return text
    return text[: LINE - 3].rsplit(" ", 1)[0] + "..."
