"""Every statistic of every way to measure equals a plain reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder import stats
from recorder.device_rows import ROWS, DeviceRows, Row
from recorder.records import NOT_MEASURED, Statistics
from recorder.stats import measure, measure_plain

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SMALL_FLOATS = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
INTEGERS = (
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
COMPLEX = (torch.complex64, torch.complex128)

EXTREMES = (0.0, -0.0, 1.0, -1.0, 65504.0, -70000.0, 6e-8, -3e-5, 1e-40, 3e38, -3.4e38, 1e-45, 1e150)
NON_FINITE = (math.inf, -math.inf, math.nan)


# the reference


def reference(tensor: torch.Tensor, full: bool) -> Statistics:
    """The statistics of a strided tensor, value by value."""
    values = [_value(value) for value in tensor.flatten().to(_wide(tensor.dtype)).tolist()]
    finite = [value for value in values if math.isfinite(value)]
    sizes = [abs(value) for value in finite]
    counts = (sum(map(math.isnan, values)), values.count(math.inf), values.count(-math.inf))
    low, high = (min(sizes), max(sizes)) if sizes else (None, None)
    if not full:
        return Statistics(low, high, None, None, *counts)
    mean = math.fsum(finite) / len(finite) if finite and not tensor.dtype.is_complex else None
    rms = math.sqrt(math.fsum(size * size for size in sizes) / len(sizes)) if sizes else None
    return Statistics(low, high, mean, rms, *counts, sizes.count(0.0), _subnormals(tensor.dtype, sizes))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _value(value: float | complex) -> float:
    if not isinstance(value, complex):
        return value
    return math.nan if math.isnan(value.real) or math.isnan(value.imag) else math.hypot(value.real, value.imag)


def _subnormals(dtype: torch.dtype, sizes: list[float]) -> int | None:
    if dtype.is_complex:
        return None
    if not dtype.is_floating_point:
        return 0
    return sum(0.0 < size < torch.finfo(dtype).smallest_normal for size in sizes)


def assert_equal(found: Statistics, expected: Statistics) -> None:
    """Extremes and counts exactly; mean and rms, which are sums, to rounding."""
    exact = [name for name in Statistics._fields if name not in ("mean", "rms")]
    for name in exact:
        one, other = getattr(found, name), getattr(expected, name)
        close = one is not None and other is not None and math.isclose(one, other, rel_tol=1e-15)  # hypot's last bit
        assert one == other or close, (name, found, expected)
    scale = expected.abs_max or 0.0
    for name in ("mean", "rms"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), (name, found, expected)
        assert one is None or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12 * scale), (name, found, expected)


# tensors of any kind


def strided(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values of a tensor of shape (a, b), lying in memory in different ways."""
    yield values
    yield values.t()
    yield values[::2, 1::2]
    yield values.t()[1:]
    yield values[:, :1].expand(-1, 3) if values.numel() else values
    yield values.t().contiguous().t()[:, None]


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]) -> torch.Tensor:
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
    values = draw(st.lists(elements(dtype), min_size=math.prod(shape), max_size=math.prod(shape)))
    tensor = torch.tensor(values, dtype=_wide(dtype) if _is_float(dtype) else torch.int64).view(shape).to(dtype)
    kinds = list(strided(tensor))
    return kinds[draw(st.integers(0, len(kinds) - 1))]


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def elements(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    """Numbers of a dtype, with the extreme ones among them; squares stay within float64."""
    if not _is_float(dtype):
        return st.integers(0, 255) if dtype is torch.uint8 else st.integers(-(2**62), 2**62)
    real = st.one_of(st.sampled_from(EXTREMES + NON_FINITE), st.floats(-1e5, 1e5), st.floats(-1e-6, 1e-6))
    return st.builds(complex, real, real) if dtype.is_complex else real


def rows_of(tensor: torch.Tensor, full: bool) -> Statistics:
    """Measured on a device, and read."""
    rows = DeviceRows(tensor.device, full)
    row = rows.add(tensor)
    return rows.read()[row] if isinstance(row, Row) else row


ANY = (*FLOATS, *SMALL_FLOATS, *INTEGERS, *COMPLEX)
examples = settings(max_examples=150, deadline=None)


@examples
@given(tensors(FLOATS))
def test_measure_plain(tensor: torch.Tensor) -> None:
    assert_equal(measure_plain(tensor), reference(tensor, full=False))


@examples
@given(tensors(ANY), st.booleans())
def test_measure(tensor: torch.Tensor, full: bool) -> None:
    assert_equal(measure(tensor, full), reference(tensor, full))


@examples
@given(tensors(ANY), st.booleans())
def test_rows_on_a_device(tensor: torch.Tensor, full: bool) -> None:
    assert_equal(rows_of(tensor, full), reference(tensor, full))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a few hundred elements are taken apart as those of millions are."""
    monkeypatch.setattr(stats, "PIECE", 7)
    monkeypatch.setattr(stats, "_SMALL", 3)
    monkeypatch.setattr(stats, "_scratch", stats._Scratch())


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", ANY, ids=str)
@pytest.mark.parametrize("bad", [(), NON_FINITE], ids=["finite", "with nan and inf"])
def test_a_large_tensor_is_measured_in_pieces(dtype: torch.dtype, bad: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(13, 17, dtype=torch.float64) * 100
    for position, value in enumerate(bad if _is_float(dtype) else ()):
        values[3 + position, 5] = value
    values = values.abs() if dtype is torch.float8_e8m0fnu or not _is_float(dtype) else values
    for tensor in strided(values.to(dtype)):
        assert_equal(measure(tensor, full=True), reference(tensor, full=True))
        if dtype in FLOATS:
            assert_equal(measure_plain(tensor), reference(tensor, full=False))


def test_a_really_large_tensor_takes_no_copy_of_itself() -> None:
    tensor = torch.full((stats.PIECE + 3, 2), -2.0).t()
    tensor[0, 5] = 4.0
    assert measure_plain(tensor)[:2] == (2.0, 4.0)
    assert measure(tensor, full=True).num_zero == 0


def test_the_tensor_is_left_as_it_is() -> None:
    tensor = torch.tensor([1.0, -math.inf, math.nan], requires_grad=True)
    version = tensor._version
    measure(tensor, full=True), measure_plain(tensor), rows_of(tensor, full=True)
    assert tensor._version == version
    assert tensor.nan_to_num(7.0).tolist() == torch.tensor([1.0, -math.inf, math.nan]).nan_to_num(7.0).tolist()


# layouts that have no strides, and values that are not there

BOTH_WAYS = pytest.mark.parametrize(
    "way", [lambda t: measure(t, full=True), lambda t: rows_of(t, full=True)], ids=["cpu", "device"]
)


@BOTH_WAYS
def test_zeros_that_a_sparse_tensor_does_not_store_count(way: Callable[[torch.Tensor], Statistics]) -> None:
    dense = torch.tensor([[0.0, -3.0, 0.0], [math.inf, 0.0, 1.0]])
    for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()):
        assert_equal(way(sparse), reference(dense, full=True))


@BOTH_WAYS
def test_a_sparse_tensor_that_stores_nothing_is_all_zeros(way: Callable[[torch.Tensor], Statistics]) -> None:
    assert_equal(way(torch.zeros(2, 3).to_sparse()), reference(torch.zeros(2, 3), full=True))


@BOTH_WAYS
def test_duplicates_of_a_sparse_tensor_are_added_up(way: Callable[[torch.Tensor], Statistics]) -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,))
    assert way(sparse).abs_max == 5.0


@BOTH_WAYS
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_is_all_its_parts(way: Callable[[torch.Tensor], Statistics], layout: torch.layout) -> None:
    parts = [torch.tensor([1.0, -9.0]), torch.tensor([math.nan])]
    assert_equal(way(torch.nested.nested_tensor(parts, layout=layout)), reference(torch.cat(parts), full=True))


@BOTH_WAYS
def test_a_conjugate_and_a_negative_view_are_what_they_show(way: Callable[[torch.Tensor], Statistics]) -> None:
    tensor = torch.tensor([3 + 4j, -1j])
    assert way(tensor.conj()).abs_max == 5.0
    assert way(tensor.conj().imag).mean == -1.5


@BOTH_WAYS
def test_what_holds_no_values_is_not_measured(way: Callable[[torch.Tensor], Statistics]) -> None:
    assert way(torch.empty(3, device="meta")) == NOT_MEASURED


@pytest.mark.parametrize("full", [False, True])
def test_a_square_that_does_not_fit_float64_leaves_the_rms_open(full: bool) -> None:
    """It is null then, like all that was not computed; an inf would be an invented number."""
    found = measure(torch.tensor([1e300, -1e308, -1e308, -1e308], dtype=torch.float64), full)
    assert (found.abs_min, found.abs_max, found.mean, found.rms) == (1e300, 1e308, None, None)


def test_more_rows_than_a_buffer_holds_keep_their_numbers() -> None:
    rows = DeviceRows(torch.device("cpu"), full=False)
    numbers = [rows.add(torch.tensor([float(i)])) for i in range(ROWS + 3)]
    assert [row.abs_max for row in rows.read()] == [float(i) for i in range(ROWS + 3)]
    assert numbers == list(range(ROWS + 3))
    assert rows.read() == []
    assert rows.add(torch.tensor([5.0])) == 0


@pytest.mark.parametrize("full", [False, True])
def test_numbers_are_the_same_whatever_mode_and_default_device_came_first(full: bool) -> None:
    """What is kept between calls is neither an inference tensor nor on the default device."""
    large = torch.ones(stats.PIECE // 4)
    stats._scratch.buffers.clear()
    with torch.inference_mode(), torch.device("meta"):
        first = measure(large, full), measure_plain(large)
    assert (measure(large, full), measure_plain(large)) == first
    with torch.inference_mode():
        rows = DeviceRows(large.device, full)
    rows.add(large)
    assert rows.read()[0].abs_max == 1.0
