"""HTML built from values that are always escaped: a sweep's names and errors are other people's text."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

VOID = frozenset({"input"})


class Markup(str):
    """Text that is already HTML; everything else is escaped on its way in."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """`value` as HTML text; Markup passes through."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value), quote=True))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. Attributes: `class_` is class, `data_target` data-target, True is bare, None is left out.

    >>> tag("a", "x < y", href="?q=1&r")
    '<a href="?q=1&amp;r">x &lt; y</a>'
    """
    shown = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{''.join(map(escape, children))}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    return Markup("\n".join(escape(part) for part in parts))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    text_columns: Sequence[int] = (),
    wide_columns: Sequence[int] = (),
) -> Markup:
    """A table in a box that scrolls sideways by itself.

    text_columns are set to the left; wide_columns too, and break into lines.
    """

    def kind(index: int) -> str | None:
        if index in wide_columns:
            return "wide"
        return "text" if index in text_columns else None

    header = tag("tr", *(tag("th", cell, scope="col", class_=kind(i)) for i, cell in enumerate(head)))
    body = [tag("tr", *(tag("td", cell, class_=kind(i)) for i, cell in enumerate(row))) for row in rows]
    made = tag("table", tag("thead", header), tag("tbody", *body))
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="table")


def stacked(row: Iterable[str]) -> list[object]:
    """The cells of a row, each estimate with its interval below it: beside it they would not fit a screen."""
    return [_stacked(cell) for cell in row]


def _stacked(cell: str) -> object:
    value, bracket, bounds = cell.rpartition(" [")
    if not bracket or not bounds.endswith("]"):
        return cell
    return join([escape(value), tag("span", f"[{bounds}", class_="bounds")])


def json_script(data: Any) -> Markup:
    """JSON that cannot end or open a script element: `<`, `>` and `&` are written as escapes.

    Raises ValueError for NaN or infinity, which JSON does not have.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'
