"""What a run trains towards: every target of its config, and whether all are reached."""

from __future__ import annotations

from gasweep.analysis.steps_to_target import TargetRule, is_reached
from gasweep.config.schema import TargetConfig
from gasweep.errors import ConfigError, nearest
from gasweep.results.records import EvalRecord


def target_rules(config: TargetConfig, *, metrics: tuple[str, ...]) -> list[TargetRule]:
    """One rule per value of `target.value`; none where it is null (train until the budget ends).

    metrics: what the task evaluates. Raises ConfigError for a metric it does not.
    """
    if config.metric not in metrics:
        raise ConfigError(
            f"target.metric={config.metric!r} is not evaluated by the task: {nearest(config.metric, metrics)}"
        )
    values = config.value if isinstance(config.value, list) else [config.value]
    return [
        TargetRule(
            metric=config.metric,
            value=float(value),
            mode=config.mode,
            rule=config.rule,
            window_fraction=config.window_fraction,
        )
        for value in values
        if value is not None
    ]


def all_reached(rules: list[TargetRule], evaluations: list[EvalRecord]) -> bool:
    """Whether the hardest target is reached too; False where there is no target."""
    return bool(rules) and all(
        is_reached([(e.optimizer_step, e.metrics.get(rule.metric)) for e in evaluations], rule)
        for rule in rules
    )
