"""Whatever a value holds, it stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasweep.analysis.estimate import Estimate
from gasweep.report.markup import Markup, json_script, tag
from gasweep.report.numbers import duration, estimate, headline, number

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--"


class Reader(HTMLParser):
    """Collects what a browser would make of a fragment."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])))
def test_text_and_attributes_come_back_as_they_went_in(value: str) -> None:
    read = Reader(tag("p", value, title=value))
    assert read.tags == [("p", {"title": value})]
    assert read.text == value


def test_hostile_text_makes_no_element() -> None:
    read = Reader(tag("td", HOSTILE, data_target=0, hidden=True, id=None))
    assert read.tags == [("td", {"data-target": "0", "hidden": None})]
    assert read.text == HOSTILE


def test_markup_is_not_escaped_twice() -> None:
    assert tag("p", tag("b", "<")) == "<p><b>&lt;</b></p>"
    assert isinstance(tag("p"), Markup)


@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_a_script_cannot_end_it_and_reads_back(value: object) -> None:
    text = json_script(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_json_refuses_numbers_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_script({"loss": float("nan")})


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567, "1,235,000"), (99999, "100,000"), (0.5, "0.5"), (12.0, "12"), (-3.14159, "-3.142")],
)
def test_numbers_have_four_digits_and_grouped_thousands(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000042, "4.2 µs"), (59.9, "59.9 s"), (7200, "2 h"), (1e6, "11.6 d")]
)
def test_durations_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_estimates_without_a_value_keep_their_bounds_and_reason() -> None:
    both = Estimate(value=None, low=1.0, high=9.0, reason="tie")
    assert estimate(both) == "between 1 and 9 (tie)"
    assert headline(both) == "not known"
    assert headline(Estimate(value=None, low=2000.0, high=None, reason="far")) == "≥ 2,000"
    assert estimate(Estimate(value=5.0, low=None, high=7.0)) == "5 [?, 7]"
