"""The report's section on the noise scale along training, beside B_crit per target."""

from __future__ import annotations

from collections.abc import Sequence

from gasweep.report import numbers
from gasweep.report.controls import Targets, section
from gasweep.report.markup import Markup, stacked, table, tag
from gasweep.report.tables import NOISE_HEADER, noise_rows
from gasweep.results.noise_course import NoiseCourse

AGAINST = ("optimizer steps", "examples", "training loss")
COURSE_HEADER = ("B", "learning rate", "optimizer step", "examples", "loss", "noise scale there")


def noise(targets: Targets) -> Markup:
    """Empty where no run measured its gradients."""
    if not any(target.section.noise for target in targets):
        return Markup("")
    options = [tag("option", name, value=index) for index, name in enumerate(AGAINST)]
    body = tag(
        "div",
        tag("label", "Against", tag("select", *options, id="noise-against"), class_="inline"),
        tag("figure", tag("div", id="noise-chart", class_="chart")),
        tag("ul", id="noise-legend", class_="legend"),
        id="noise-body",
    )
    return section(
        "noise",
        "Gradient noise scale",
        tag(
            "p",
            "tr Σ / |G|² in examples, over trailing windows of a fifth of the measured steps, with 95 % "
            "bands; one run for each batch size. Open triangle: |G|² is not resolved, and only a lower bound "
            "is known. It is not the critical batch size.",
        ),
        body,
        tag("p", "No run of this target measured its gradients.", id="noise-missing", hidden=True),
        tag("h3", "Beside B_crit, where each target was reached", class_="gap"),
        _beside(targets),
        tag("h3", "At the end of training", class_="gap"),
        *[tag("div", _last(target.section.noise), data_target=i) for i, target in enumerate(targets)],
    )


def noise_link(targets: Targets) -> Markup:
    """In the page's bar, where the section is."""
    return tag("a", "Noise scale", href="#noise") if noise(targets) else Markup("")


def _beside(targets: Targets) -> Markup:
    rows = [[target.title, *stacked(row[1:])] for target in targets for row in noise_rows([target.view])]
    return table(NOISE_HEADER, rows, text_columns=(0, 3)) if rows else tag("p", "Not known at any target.")


def _last(courses: Sequence[NoiseCourse]) -> Markup:
    rows = [stacked(_row(course)) for course in courses]
    return table(COURSE_HEADER, rows) if rows else tag("p", "Not measured.")


def _row(course: NoiseCourse) -> list[str]:
    last = course.points[-1]
    return [
        numbers.count(course.effective_batch_size),
        "" if course.learning_rate is None else numbers.number(course.learning_rate),
        numbers.count(last.optimizer_step),
        numbers.count(last.contributions),
        "" if last.loss is None else numbers.number(last.loss),
        numbers.estimate(last.window.noise_scale),
    ]
