"""The targets of a report in their one order, which page and scripts share."""

from __future__ import annotations

from dataclasses import dataclass

from gasweep.report.data import ReportData, StudySection
from gasweep.report.study_view import TargetView, read_study

MAX_TARGETS = 24


@dataclass(frozen=True, kw_only=True)
class ShownTarget:
    """A target with the section of the sweep it belongs to; `title` names both."""

    title: str
    view: TargetView
    section: StudySection
    section_index: int


def shown_targets(data: ReportData) -> list[ShownTarget]:
    """The first `MAX_TARGETS` targets, section by section."""
    return every_target(data)[:MAX_TARGETS]


def every_target(data: ReportData) -> list[ShownTarget]:
    return [
        ShownTarget(
            title=f"{section.label} · {view.target}" if section.label else view.target,
            view=view,
            section=section,
            section_index=index,
        )
        for index, section in enumerate(data.studies)
        for view in read_study(section.study)
    ]
