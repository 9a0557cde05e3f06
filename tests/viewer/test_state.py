"""The view in the URL: it comes back as it was, links are short, and a wrong link is no error."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

from hypothesis import given
from hypothesis import strategies as st

from recorder.schema import Phase, Role
from viewer.filters import AXES, Filter
from viewer.query import SORTS
from viewer.state import TABS, View, cleared, from_params, is_filtered, moved, narrowed, tensor_of, to_params

METRIC_CHOICES = [("abs_max", "abs_min"), ("abs_max",), ("rms", "abs_min")]
numbers = st.integers(0, 10**12)
dtypes = st.lists(st.from_regex(r"[a-z0-9_]{1,12}", fullmatch=True), unique=True, max_size=3).map(tuple)
filters = st.builds(
    Filter,
    phases=st.lists(st.sampled_from([one.value for one in Phase]), unique=True).map(tuple),
    roles=st.lists(st.sampled_from([one.value for one in Role]), unique=True).map(tuple),
    dtypes=dtypes,
    module=st.text(),
    name=st.text().map(str.strip),
    batches=st.none() | st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair))),
    training=st.none() | st.booleans(),
    flagged=st.booleans(),
    metrics=st.sampled_from(METRIC_CHOICES),
    x=st.sampled_from(AXES),
)
views = st.builds(
    View,
    run=st.text(),
    tab=st.sampled_from(TABS),
    source=st.text(),
    filter=filters,
    page=st.integers(1, 10**6),
    sort=st.sampled_from(SORTS),
    frame=st.none() | numbers,
    tensor=st.text(),
)


@given(views)
def test_a_link_restores_the_view(view: View) -> None:
    assert from_params(to_params(view)) == view


@given(views.filter(lambda view: "\ud800" not in repr(view)))
def test_it_survives_the_way_through_a_browser_s_address(view: View) -> None:
    assert from_params(dict(parse_qsl(urlencode(to_params(view)), keep_blank_values=True))) == view


def test_the_plain_view_needs_no_query() -> None:
    assert to_params(View()) == {}
    assert from_params({}) == View()


def test_a_link_says_only_what_differs() -> None:
    view = View(run="run-a", filter=Filter(roles=("output",), batches=(3, 7), x="depth"), frame=12)
    assert to_params(view) == {"run": "run-a", "role": "output", "batches": "3-7", "x": "depth", "frame": "12"}


@given(
    st.dictionaries(
        st.sampled_from(
            ["phase", "role", "batches", "mode", "flagged", "metric", "x", "page", "sort", "frame", "view"]
        ),
        st.text() | st.sampled_from(["-", "1-", "-5", "9-2", "1e9", "²", "nan", "output,,output", "0", "true"]),
    )
)
def test_what_a_link_says_wrongly_is_left_out(params: dict[str, str]) -> None:
    view = from_params(params)
    assert from_params(to_params(view)) == view
    assert view.page >= 1
    assert view.filter.x in AXES
    assert view.filter.batches is None or view.filter.batches[0] <= view.filter.batches[1]


def test_another_filter_begins_on_the_first_page() -> None:
    assert narrowed(View(page=7), flagged=True) == View(filter=Filter(flagged=True), page=1)


def test_another_run_keeps_the_filter_but_not_what_pointed_into_the_old_one() -> None:
    view = View("a", filter=Filter(roles=("output",), module="encoder", batches=(1, 2)), frame=4, page=9, tensor="x/")
    assert moved(view, "b") == View("b", filter=Filter(roles=("output",)))


def test_clearing_keeps_how_it_is_drawn() -> None:
    drawn = Filter(x="depth", metrics=("rms",))
    assert cleared(View(filter=replace(drawn, flagged=True, name="wo"))).filter == drawn
    assert not is_filtered(drawn)
    assert is_filtered(replace(drawn, name="wo"))


def test_a_tensor_is_a_role_and_a_key_which_may_be_empty_or_have_slashes() -> None:
    assert tensor_of("output/") == ("output", "")
    assert tensor_of("input/a/b") == ("input", "a/b")
    assert tensor_of("output") is None
    assert tensor_of("") is None
