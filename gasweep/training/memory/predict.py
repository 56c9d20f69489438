"""What a rank will hold, counted before anything runs: the model is built on the meta device, where tensors
have a shape and no memory, and one forward of such tensors shows what autograd would keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gasweep.config.run_spec import RunSpec
from gasweep.tasks.resolve import resolve_task
from gasweep.training.accumulation_choice import AccumulationChoice, choose_accumulation
from gasweep.training.main_parameters import LOW_PRECISION
from gasweep.training.memory.activations import Activations, count_activations

MAIN_BYTES = 4  # fp32
BITWISE_SUM_BYTES = 8  # int64; the finished gradient lies in the same bytes


@dataclass(frozen=True, kw_only=True)
class MemoryPrediction:
    """Tensor bytes of one rank; interpreter, libraries and an allocator's slack come on top.

    parameters, gradients, optimizer: as sharded. A gradient is what waits for the last micro-step.
    sums: fp32 main parameters and gradients beside a low-precision model, or bitwise mode's integer sums.
    activations: what autograd keeps of one micro-batch; None when it could not be counted, `reason` says why.
    backward: gradients of activations on their way, two of the largest.
    gathered: FSDP2's gathered units and its messages.
    updating: the optimizer's temporaries, or DDP's second set of buckets while it reorders them (once, in its
        second step); never beside the three before.
    """

    parameters: int
    gradients: int
    optimizer: int
    sums: int
    activations: int | None
    backward: int
    gathered: int
    updating: int
    reason: str | None = None

    @property
    def held(self) -> int:
        """All through the run."""
        return self.parameters + self.gradients + self.optimizer + self.sums

    @property
    def peak(self) -> int | None:
        """Held, and the larger of what computing and what updating need."""
        if self.activations is None:
            return None
        return self.held + max(self.activations + self.backward + self.gathered, self.updating)


def predict_memory(spec: RunSpec) -> MemoryPrediction:
    """Count `spec` on one of its ranks. Loads the task's data, for the shapes of a batch.

    Assumes: SGD or Adam as torch's multi-tensor implementation; parameters that shard evenly.
    """
    config, layout = spec.config, spec.layout
    task = resolve_task(config.task)
    with torch.device("meta"):
        module = task.build_model()
        if config.precision == "fp64":
            module = module.double()
    units = task.parallelize(module) or []
    share = -(-spec.effective_batch_size // layout.world_size)
    num_examples = min(config.grain if config.determinism == "bitwise" else layout.micro_batch_size, share)
    activations = count_activations(
        task,
        module,
        units=units,
        num_examples=num_examples,
        precision=config.precision,
        recomputed=config.strategy_options.activation_checkpointing,
        root=config.data.root,
    )
    return _predict(spec, module, units=units, activations=activations)


def _predict(
    spec: RunSpec, module: nn.Module, *, units: Sequence[nn.Module], activations: Activations
) -> MemoryPrediction:
    config, num_ranks = spec.config, spec.layout.world_size
    choice = choose_accumulation(config, module=module, world_size=num_ranks)
    trained = [p for p in module.parameters() if p.requires_grad]
    elements = sum(p.numel() for p in trained)
    whole = sum(t.nbytes for t in [*module.parameters(), *module.buffers()])
    gradients = sum(p.nbytes for p in trained)
    updated = sum(p.numel() * (MAIN_BYTES if p.dtype in LOW_PRECISION else p.element_size()) for p in trained)
    is_fsdp = config.strategy == "fsdp" and num_ranks > 1
    shards = num_ranks if is_fsdp else 1
    copies, temporaries = _optimizer_copies(spec)
    updating = temporaries * updated // shards
    parameters, held, gathered = whole, gradients, 0
    if is_fsdp:
        parameters, held, gathered = _fsdp(spec, module, units, whole=updated)
    elif config.strategy == "ddp" and num_ranks > 1 and choice.strategy_syncs:
        updating = max(updating, gradients)
    return MemoryPrediction(
        parameters=parameters,
        gradients=0 if choice.bitwise else held,
        optimizer=copies * updated // shards,
        sums=_sums(choice, elements, updated, is_low=updated > gradients),
        activations=activations.num_bytes,
        backward=2 * activations.largest,
        gathered=gathered,
        updating=updating,
        reason=activations.reason,
    )


def _optimizer_copies(spec: RunSpec) -> tuple[int, int]:
    """Copies of the parameters that the optimizer keeps, and makes for the length of a step."""
    options = spec.config.optimizer
    coupled = int(options.weight_decay > 0 and options.name != "adamw")
    if options.name == "sgd":
        return int(options.momentum > 0), coupled
    return 2, 1 + coupled


def _fsdp(
    spec: RunSpec, module: nn.Module, units: Sequence[nn.Module], *, whole: int
) -> tuple[int, int, int]:
    """(parameters, gradients, gathered) of one rank under FSDP2, which shards in fp32.

    Between micro-steps gradients wait whole, unless every one is synced; parameters are gathered two units at
    a time (one in use, the next on its way), or all of them where they are not resharded. A reduction holds
    one unit's gradient as it is sent, and its shard as it arrives.
    """
    options, num_ranks = spec.config.strategy_options, spec.layout.world_size
    waits = spec.layout.accumulation_steps > 1 and not options.sync_every_micro_step
    unit = _largest_unit(module, units)
    gathered = min(2 * unit, whole) if options.reshard_after_forward else whole
    parameters = whole // num_ranks
    if waits and not options.reshard_after_backward:
        parameters, gathered = parameters + whole, 0 if not options.reshard_after_forward else gathered
    message = unit + unit // num_ranks
    own_gradient = 0 if waits else unit
    return parameters, whole if waits else whole // num_ranks, gathered + message + own_gradient


def _largest_unit(module: nn.Module, units: Sequence[nn.Module]) -> int:
    """Bytes of the largest set of parameters gathered together; the root holds what no unit does."""
    seen: set[int] = set()
    sizes = []
    for owner in [*units, module]:
        own = [p for p in owner.parameters() if id(p) not in seen]
        seen.update(id(p) for p in own)
        sizes.append(sum(p.nbytes for p in own))
    return max(sizes)


def _sums(choice: AccumulationChoice, elements: int, updated: int, *, is_low: bool) -> int:
    if choice.bitwise:
        return BITWISE_SUM_BYTES * elements + (updated if is_low else 0)
    if not choice.has_main:
        return 0
    return updated + (updated if is_low else 0)
