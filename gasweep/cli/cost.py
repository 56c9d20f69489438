"""What each layout of a sweep costs to the target: steps joined with measured seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gasweep.cli.answer import Answer
    from gasweep.report.data import Layout


@dataclass(frozen=True, kw_only=True)
class SettingCosts:
    """One setting of the extra axes: its study and its timed layouts."""

    label: str
    study: dict[str, Any]
    layouts: tuple[Layout, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of a whole sweep, with the limits asked about."""

    settings: list[SettingCosts]
    deadline_s: float | None
    budget_gpu_hours: float | None

    def lines(self) -> list[str]:
        """The front, fastest first, and the answers to the limits, per setting and target."""
        from gasweep.report.cost_tables import cost_lines

        found: list[str] = []
        for setting in self.settings:
            found += [setting.label] if setting.label else []
            found += cost_lines(setting.study, setting.layouts, **self._limits())
        return found

    def to_dicts(self) -> list[dict[str, Any]]:
        """One JSON-ready object per setting."""
        from gasweep.report.cost_tables import cost_dict

        return [
            {"setting": setting.label} | cost_dict(setting.study, setting.layouts, **self._limits())
            for setting in self.settings
        ]

    def _limits(self) -> dict[str, float | None]:
        return {"deadline_s": self.deadline_s, "budget_gpu_hours": self.budget_gpu_hours}


def costs_of(
    directory: Path, answer: Answer, deadline_s: float | None, budget_gpu_hours: float | None
) -> Costs:
    """Join every study of `answer` with the layouts that the sweep in `directory` timed."""
    from gasweep.report.sweep_layouts import sweep_layouts
    from gasweep.results.reader import JournalReader

    settings = []
    with JournalReader.open(directory) as reader:
        results = reader.results()
        for entry in answer.studies:
            axes = entry.study["targets"][0].get("axes", {}) if entry.study["targets"] else {}
            layouts = sweep_layouts(reader, results, axes=axes)
            settings.append(SettingCosts(label=entry.label, study=entry.study, layouts=layouts))
    return Costs(settings=settings, deadline_s=deadline_s, budget_gpu_hours=budget_gpu_hours)
