"""Frames of every kind, for property tests of the ring and the dump."""

from __future__ import annotations

from hypothesis import strategies as st

from recorder.records import Frame, Layout, Statistics, TensorRecord
from recorder.schema import Phase, Role

_INT64 = st.integers(-(2**63), 2**63 - 1)
_COUNT = st.one_of(st.just(0), st.integers(0, 2**63 - 1))
_FLOAT = st.floats(allow_nan=False)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _maybe(strategy: st.SearchStrategy[int] | st.SearchStrategy[float]) -> st.SearchStrategy[int | float | None]:
    return st.one_of(st.none(), strategy)


def layouts() -> st.SearchStrategy[Layout]:
    tensors = st.builds(Layout, st.sampled_from(["float16", "int64"]), _TEXT, _TEXT, st.integers(0, 2**63 - 1))
    return st.one_of(tensors, st.builds(Layout, _TEXT, st.none(), st.none(), st.none()))


def statistics() -> st.SearchStrategy[Statistics]:
    healthy = st.tuples(_FLOAT, _FLOAT).map(lambda both: Statistics(*both, None, None, 0, 0, 0))
    anything = st.tuples(*[_maybe(_FLOAT)] * 4, *[_maybe(_COUNT)] * 5).map(Statistics._make)
    return st.one_of(healthy, anything, st.just(Statistics()))


def records() -> st.SearchStrategy[TensorRecord]:
    return st.builds(TensorRecord, st.sampled_from(Role), _TEXT, layouts(), statistics(), st.booleans())


def frames() -> st.SearchStrategy[Frame]:
    return st.builds(
        Frame,
        batch=_INT64,
        step=st.integers(0, 2**32 - 1),
        seq=_INT64,
        call=st.integers(0, 2**31 - 1),
        t_ns=_INT64,
        phase=st.sampled_from(Phase),
        module=_TEXT,
        module_class=_TEXT,
        depth=st.integers(0, 2**15 - 1),
        training=st.booleans(),
        recompute=st.booleans(),
        records=st.lists(records(), max_size=6).map(tuple),
        origin=st.booleans(),
    )


def frame_lists() -> st.SearchStrategy[list[Frame]]:
    return st.lists(frames(), max_size=5)
