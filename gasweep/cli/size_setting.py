"""Which of a grid's settings is sized: the recipe makes one run, and an axis of several values several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gasweep.config.axes import read_axes
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError


def one_setting(config: SweepConfig) -> dict[str, Any]:
    """The value of each extra axis of the grid. Raises ConfigError where one has several."""
    extra = read_axes(config).extra
    for path, values in extra.items():
        if len(values) > 1:
            raise ConfigError(
                f"grid.{path}={values} is several settings, and size makes one run: choose, e.g. "
                f"'grid.{path}=[{values[0]}]'"
            )
    return {path: values[0] for path, values in extra.items()}


def hardest_target(targets: Sequence[dict[str, Any]], setting: dict[str, Any]) -> dict[str, Any] | None:
    """Of `fit`'s targets at `setting` the one that takes longest; None where there is none.

    The last one of several metrics, which cannot be compared.
    """
    found = [target for target in targets if target.get("axes", {}) == setting]
    if not found or any(target["rule"]["metric"] != found[0]["rule"]["metric"] for target in found):
        return found[-1] if found else None
    sign = 1.0 if found[0]["rule"]["mode"] == "max" else -1.0
    return max(found, key=lambda target: sign * float(target["rule"]["value"]))
