"""The gradient of a step over all processes: summed exactly once, its noise drawn exactly once.

Every entry has one *owner*, who alone draws its noise, after the sum: of a replicated parameter a rank that is
chosen by size, of a sharded one the rank whose shard it is. Replicas get the gradient as its owner released it,
bit by bit. So no two draws for one entry exist that could be averaged, and none that is scaled or added in two
ways and could be subtracted, whatever the devices' generators and their rounding do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..distributed import ALONE, World
from ..native.fingerprint import Key, new_secret
from ..native.memory_rows import dense
from ..sharding import cut_once, finished_by_hand, forget_gradients, fsdp_groups, is_shard
from . import checks
from .checks import PrivacyError


def owners(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Return a rank for each name, so that all have about the same number of entries."""
    loads = [0] * ranks
    found = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = loads.index(min(loads))
        loads[found[name]] += sizes[name]
    return found


class Reduction:
    """The gradients of a module that all processes of a world train together.

    Args:
        clipped: names of parameters of clip groups, which reduce their gradients: that of a shard is the sum.

    Attributes:
        world: the processes.
        mine: the parameters whose noise this process draws, all of them or a shard, in the order of the module's.
    """

    def __init__(self, module: nn.Module, world: World = ALONE, clipped: Collection[str] = ()) -> None:
        self.world, self._module, self._clipped = world, module, clipped
        self._parameters = checks.trainable(module)
        replicated = {name: p.numel() for name, p in self._parameters.items() if not is_shard(p)}
        self._owners = owners(replicated, world.size)
        self.mine = {
            name: p for name, p in self._parameters.items() if self._owners.get(name, world.rank) == world.rank
        }
        self._summed = False
        self._key: Key | None = None

    def roundings(self, parameter: nn.Parameter) -> int:
        """Return how often a gradient in half precision is rounded: as a part, and as the sum, see `sum_slack`.

        Clip groups add up the parts of shards in float32.
        """
        return 1 if self.world is ALONE or is_shard(parameter) else 2

    def share_weights_(self) -> None:
        """Give all processes the parameters and buffers of rank 0, but for shards; and a key to compare by."""
        self._key = Key(self.world.first("share a key", new_secret))
        for tensor in [*self._module.parameters(), *self._module.buffers()]:
            if not is_shard(tensor):
                self.world.spread_(tensor.detach(), 0)

    def reset(self) -> None:
        """Begin a new sum."""
        self._summed = False
        forget_gradients(self._module)

    def sum_(self) -> None:
        """Replace each gradient by the sum over all processes, where its owner is; a missing one counts as zero.

        Half precision is summed in float32. The averages of FSDP become sums again; the averages of DDP need no
        change, since the sum of R equal means is the sum.
        """
        if self.world is ALONE:
            return
        self._summed = True
        for name, parameter in self._parameters.items():
            if name in self._owners:
                self._sum_replicas_(parameter, self._owners[name])
            elif parameter.grad is not None and name not in self._clipped:
                parameter.grad = parameter.grad * self.world.size

    def _sum_replicas_(self, parameter: nn.Parameter, owner: int) -> None:
        total = _widened(parameter)
        self.world.reduce_(total, owner)
        parameter.grad = total.to(parameter.dtype)

    def norms(self) -> dict[str, float]:
        """Return the Euclidean norm of each gradient that is not missing, after `sum_`; the same on every rank."""
        parts = self.world.each("measure the gradient", lambda: checks.gradient_norms(self.mine))
        names = [name for name in self._parameters if any(name in part for part in parts)]
        return {name: math.hypot(*(part[name] for part in parts if name in part)) for name in names}

    def spread_(self) -> None:
        """Give replicas the gradient as its owner released it."""
        if self.world is ALONE:
            return
        for name, owner in self._owners.items():
            parameter = self._parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            self.world.spread_(parameter.grad, owner)

    def weights(self) -> list[int]:
        """Return a fingerprint of each replicated parameter; nothing if there is but one process."""
        if self.world is ALONE:
            return []
        assert self._key is not None, "weights are shared before anything is trained"
        return checks.fingerprints({name: self._parameters[name] for name in self._owners}, self._key)

    def check(self) -> None:
        """Refuse gradients that were summed before, and shards of which it is not known what the sum is.

        Raises:
            PrivacyError: another sum would count every example twice; hybrid or tensor-parallel meshes, another
            reduction than FSDP's own, mixed precision, a backward pass that is finished by hand.
            RankError: see `World.check_current`.
        """
        self.world.check_current()
        if self._summed:
            raise PrivacyError(
                "the gradient was rejected after it was summed over all processes: call zero_grad() and "
                "backward() again, or abandon_batch(), on every rank"
            )
        for name, parameter in self._parameters.items():
            if is_shard(parameter) and not cut_once(parameter, self.world.size):
                raise PrivacyError(
                    f"{name} is sharded as {parameter.placements} over {parameter.device_mesh}: noise is "
                    "supported only for one mesh of one dimension over all ranks, as "
                    "fully_shard(module) makes it"
                )
            if is_shard(parameter) and parameter.element_size() < 4 and name not in self._clipped:
                raise PrivacyError(
                    f"{name} is sharded in half precision: FSDP then sums gradients in half precision, "
                    "and the noise does not cover that rounding error; keep parameters in float32, and "
                    "use torch.autocast"
                )
            if is_shard(parameter) and getattr(parameter, "grad_dtype", parameter.dtype) != parameter.dtype:
                raise PrivacyError(
                    f"{name} has a grad_dtype that differs from its dtype: FSDP sums gradients in "
                    "grad_dtype from torch 2.15 on, and the noise does not cover that rounding error; "
                    "do not set grad_dtype"
                )
        if finished_by_hand(self._module):
            raise PrivacyError(
                "FSDP is set to end a backward pass only at finalize_backward(): do not call "
                "set_manual_backward_finalization"
            )
        for group in fsdp_groups(self._module):
            _check_group(group)


_LEFT_ALONE = {
    "reduce_grads": (True, "call set_requires_gradient_sync(True) before backward()"),
    "gradient_divide_factor": (None, "leave set_gradient_divide_factor alone"),
    "_all_reduce_hook": (None, "do not set an all-reduce hook"),
}


def _check_group(group: Any) -> None:
    for name, (value, help_line) in _LEFT_ALONE.items():
        if not hasattr(group, name):
            raise PrivacyError(
                "this version of torch has an unknown version of FSDP: replicate the module instead"
            )
        if getattr(group, name) is not value:
            raise PrivacyError(f"FSDP is set not to compute the mean of all gradients: {help_line}")
    if not type(group._reduce_scatter_comm).__module__.startswith("torch."):
        raise PrivacyError("FSDP has a custom reduction here, which is not supported: use the default of torch")
    policies = [parameter.mp_policy for parameter in group.fsdp_params]  # before torch 2.15 the group's own
    if any(policy.param_dtype or policy.reduce_dtype or policy.output_dtype for policy in policies):
        raise PrivacyError(
            "FSDP's mixed precision rounds weights so that they violate their constraints: remove "
            "mp_policy, and use torch.autocast"
        )


def _widened(parameter: nn.Parameter) -> Tensor:
    """Return a copy of the gradient that is dense, contiguous and in float32 at least."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    if parameter.grad is None:
        return torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
    return dense(parameter.grad).to(dtype, copy=True).contiguous()


# --- DistributedDataParallel -------------------------------------------------------------------------------------


def without_ddp(module: Any, world: World) -> Any:
    """Return the module inside `DistributedDataParallel`, which no longer averages; any other as it is.

    Raises:
        PrivacyError: its processes are not all, or it changes what it hands on.
    """
    if not isinstance(module, DistributedDataParallel):
        return module
    if module.process_group.size() != world.size:
        raise PrivacyError("DistributedDataParallel covers only a part of the processes: remove process_group")
    if module.mixed_precision is not None:
        raise PrivacyError("DistributedDataParallel's mixed precision rounds weights: use torch.autocast instead")
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook  # slow to import

    if module._comm_hooks != [(noop_hook, None)]:  # by an earlier call
        try:
            module.register_comm_hook(None, noop_hook)  # the engine sums, once, at the step
        except RuntimeError as error:
            raise PrivacyError(
                "DistributedDataParallel has a communication hook, which may change gradients: remove it"
            ) from error
    return module.module
