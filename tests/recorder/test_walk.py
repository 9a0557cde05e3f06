"""Nested values are opened into leaves with keys, in a fixed order."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch

from recorder.walk import MAX_DEPTH, MAX_LEAVES, leaves

T = torch.ones(1)
Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    loss: Any
    states: Any = field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        (T, [""]),
        (None, [""]),
        (3, [""]),
        ("text", [""]),
        ((T, T), ["0", "1"]),
        ([T, (T, [T])], ["0", "1.0", "1.1.0"]),
        ({"a": T, "b": {"c": T}}, ["a", "b.c"]),
        ({0: T, ("x", 1): T}, ["0", "('x', 1)"]),
        (OrderedDict(z=T, a=T), ["z", "a"]),
        (MappingProxyType({"a": T}), ["a"]),
        (Pair(T, (T,)), ["0", "1.0"]),
        (Output(T, (T, None)), ["loss", "states.0", "states.1"]),
        ((), [""]),
        ({}, [""]),
        (Output, [""]),
        (torch.Size([2, 3]), ["0", "1"]),
    ],
    ids=repr,
)
def test_keys_name_the_way_to_each_leaf(value: object, keys: list[str]) -> None:
    assert [key for key, _ in leaves(value)] == keys


def test_a_key_begins_with_that_of_its_container() -> None:
    assert [key for key, _ in leaves((T, {"mask": T}), "past")] == ["past.0", "past.1.mask"]


def test_leaves_are_the_values_themselves() -> None:
    assert all(leaf is T for _, leaf in leaves([T, {"a": (T,)}]))


def test_a_tensor_is_never_opened() -> None:
    assert leaves(torch.ones(3, 3))[0][0] == ""


def test_an_attribute_that_a_dataclass_lacks_is_passed_over() -> None:
    output = Output(T)
    del output.states
    assert [key for key, _ in leaves(output)] == ["loss"]


def test_a_container_that_holds_itself_ends() -> None:
    loop: list[object] = []
    loop.append(loop)
    [(key, leaf)] = leaves(loop)
    assert (key.count("."), leaf) == (MAX_DEPTH - 1, loop)


def test_a_huge_list_is_cut_off() -> None:
    assert len(leaves(["token"] * 100_000)) == MAX_LEAVES


def test_the_types_of_containers_other_than_tuples_are_told() -> None:
    told: list[tuple[str, str]] = []
    leaves(([T], {"a": (T,)}, Output(T)), "", lambda key, kind: told.append((key, kind)))
    assert told == [("0", "list"), ("1", "dict"), ("2", "Output")]
