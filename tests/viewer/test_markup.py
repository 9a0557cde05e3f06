"""Pieces of HTML: everything that comes from a dump is text in them, never markup."""

from __future__ import annotations

from html.parser import HTMLParser

from viewer.chart_style import DARK, LIGHT
from viewer.facts import Fact
from viewer.markup import address, fact_list, fact_row, heading, linked_table, style, table, verdict_box

EVIL = "<img src=x onerror=alert(1)>\x1b[31m&\"'"


class Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.said = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.said += data


def test_names_and_texts_are_never_markup() -> None:
    pieces = [
        heading(EVIL, EVIL, "bad", [EVIL]),
        verdict_box([EVIL, f"Try: {EVIL}"], "bad"),
        fact_row([Fact(EVIL, EVIL, EVIL)]),
        fact_list([Fact(EVIL, EVIL)]),
        table([EVIL], [[EVIL]]),
        linked_table(["run"], [(address({"run": EVIL}), "bad", [EVIL])]),
    ]
    for piece in pieces:
        read = Reader(piece)
        assert "img" not in read.tags
        assert "<img src=x" in read.said
        assert "\x1b" not in piece


def test_a_verdict_tells_what_happened_apart_from_what_is_behind_it() -> None:
    read = Reader(verdict_box(["inf in output of x.", "Born here: a -> b.", "Very likely: c.", "Try: d."], "bad"))
    assert read.said == "inf in output of x.Born here: a → b.Very likely: c.Try: d."
    assert read.tags.count("b") == 3


def test_a_verdict_of_one_line_and_of_none_can_be_shown() -> None:
    assert Reader(verdict_box(["Healthy."], "good")).said == "Healthy."
    assert Reader(verdict_box([], "good")).said


def test_an_address_says_only_what_it_must() -> None:
    assert address({}) == "./"
    assert address({"run": "a b&c"}) == "./?run=a+b%26c"


def test_both_themes_have_a_style() -> None:
    assert style(LIGHT) != style(DARK)
    assert "%" not in style(LIGHT).split("}")[0].replace("%3D", "")
