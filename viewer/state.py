"""What a reader looks at, as the query of a URL and back. Pure.

A link says only what differs from the plain view, so it stays short; what it says wrongly is left out, never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recorder.schema import Phase, Role
from viewer.filters import AXES, METRICS, Filter
from viewer.query import SORTS

TABS = ("overview", "records")


@dataclass(frozen=True)
class View:
    """One state of the app.

    run: a run's id, "" for all runs. tab: one of TABS. source: which of its dumps, "" for the one that says most.
    page, sort: of the table of records. frame: seq of the frame that is looked into. tensor: "role/key" in it.
    """

    run: str = ""
    tab: str = "overview"
    source: str = ""
    filter: Filter = field(default_factory=Filter)
    page: int = 1
    sort: str = "seq"
    frame: int | None = None
    tensor: str = ""


def to_params(view: View) -> dict[str, str]:
    """The query of the view's link."""
    chosen = view.filter
    said = {
        "run": view.run,
        "view": "" if view.tab == View.tab else view.tab,
        "dump": view.source,
        "module": chosen.module,
        "name": chosen.name.strip(),
        "phase": ",".join(chosen.phases),
        "role": ",".join(chosen.roles),
        "dtype": ",".join(chosen.dtypes),
        "batches": "" if chosen.batches is None else f"{chosen.batches[0]}-{chosen.batches[1]}",
        "mode": {None: "", True: "training", False: "evaluation"}[chosen.training],
        "flagged": "1" if chosen.flagged else "",
        "metric": "" if chosen.metrics == Filter.metrics else ",".join(chosen.metrics),
        "x": "" if chosen.x == Filter.x else chosen.x,
        "page": "" if view.page == 1 else str(view.page),
        "sort": "" if view.sort == View.sort else view.sort,
        "frame": "" if view.frame is None else str(view.frame),
        "tensor": view.tensor,
    }
    return {name: text for name, text in said.items() if text}


def from_params(params: Mapping[str, str]) -> View:
    """The view of a link."""
    chosen = Filter(
        phases=_several(params, "phase", [phase.value for phase in Phase]),
        roles=_several(params, "role", [role.value for role in Role]),
        dtypes=_several(params, "dtype"),
        module=params.get("module", ""),
        name=params.get("name", ""),
        batches=_range(params.get("batches", "")),
        training={"training": True, "evaluation": False}.get(params.get("mode", "")),
        flagged=params.get("flagged") == "1",
        metrics=_several(params, "metric", METRICS) or Filter.metrics,
        x=_one(params, "x", AXES, Filter.x),
    )
    return View(
        run=params.get("run", ""),
        tab=_one(params, "view", TABS, View.tab),
        source=params.get("dump", ""),
        filter=chosen,
        page=max(1, _whole(params.get("page", "")) or 1),
        sort=_one(params, "sort", SORTS, View.sort),
        frame=_whole(params.get("frame", "")),
        tensor=params.get("tensor", ""),
    )


def narrowed(view: View, **changes: Any) -> View:
    """The view with another filter; it begins on the first page, since the pages are others now."""
    return replace(view, filter=replace(view.filter, **changes), page=1)


def moved(view: View, run: str, source: str = "") -> View:
    """Another run or dump, through the same filter; what pointed into the old records is dropped."""
    return View(
        run=run, tab=view.tab, source=source, filter=replace(view.filter, module="", batches=None), sort=view.sort
    )


def cleared(view: View) -> View:
    """The view with nothing filtered out; how it is drawn stays."""
    return replace(view, filter=Filter(metrics=view.filter.metrics, x=view.filter.x), page=1)


def is_filtered(chosen: Filter) -> bool:
    """Whether the filter can hide a record."""
    return replace(chosen, metrics=Filter.metrics, x=Filter.x) != Filter()


def tensor_of(text: str) -> tuple[str, str] | None:
    """Role and key of "role/key"; None when it says neither."""
    role, slash, key = text.partition("/")
    return (role, key) if slash and role else None


def _several(params: Mapping[str, str], name: str, known: Any = None) -> tuple[str, ...]:
    """The comma-separated values, each once, in the order of the link."""
    said = dict.fromkeys(text for text in params.get(name, "").split(",") if text)
    return tuple(text for text in said if known is None or text in known)


def _one(params: Mapping[str, str], name: str, known: tuple[str, ...], otherwise: str) -> str:
    said = params.get(name, "")
    return said if said in known else otherwise


def _range(text: str) -> tuple[int, int] | None:
    first, last = (_whole(part) for part in (text.partition("-")[::2]))
    return None if first is None or last is None else (min(first, last), max(first, last))


def _whole(text: str) -> int | None:
    parse: Callable[[str], int] = int
    return parse(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
