"""The config schema, its loading, the grid and its factorisation, run ids. May import layer 1."""

from gasweep.config.load import config_to_dict, config_to_yaml, load_sweep_config, parse_sweep_config
from gasweep.config.plan import GridPoint, Rejected, SweepPlan, plan_sweep
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig

__all__ = [
    "GridPoint",
    "Layout",
    "Rejected",
    "RunSpec",
    "SweepConfig",
    "SweepPlan",
    "config_to_dict",
    "config_to_yaml",
    "load_sweep_config",
    "parse_sweep_config",
    "plan_sweep",
]
