"""Tensors and modules that torch cut into shards, and modules that hooks change.

Parameters may be cut into shards, one on each process, by torch's FSDP2 (`torch.distributed.fsdp.fully_shard`).
The facts about a sharded parameter are facts about the whole: its constraint set, its bound, its noise scale.
Operations on single entries act on the shard. Operations that need the whole parameter gather it, and every
process cuts its shard from the SAME result, rank 0's. FSDP's module keeps the hooks and the averaging that
`fully_shard` gave it; both are known here and checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_FSDP = "torch.distributed.fsdp"  # slow to import, like tensors; without it there are no modules of its


def is_shard(tensor: object) -> TypeGuard[DTensor]:
    """Whether a tensor is one of torch's distributed tensors."""
    home = sys.modules.get("torch.distributed.tensor")  # slow to import, and without it there are none
    return home is not None and isinstance(tensor, home.DTensor)


def is_away(tensor: Tensor) -> bool:
    """Whether FSDP has not gathered a parameter, or has freed what it gathered: the numbers are not here."""
    if _FSDP not in sys.modules or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return is_shard(tensor) or (tensor.numel() > 0 and tensor.untyped_storage().size() == 0)


def local(tensor: Tensor) -> Tensor:
    """Return the shard that lies here; of a tensor that is not sharded, itself."""
    return tensor.to_local() if is_shard(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor put together from all shards, which all processes call; any other tensor as it is.

    Raises:
        ValueError: the shards are on a GPU, and gloo would gather them.
    """
    if not is_shard(tensor):
        return tensor
    check_backend(tensor.device, tensor.device_mesh.get_group())
    return tensor.full_tensor()


def check_backend(device: torch.device, group: Any) -> None:
    """Refuse to gather shards of a GPU by gloo: torch ends with a segmentation fault then."""
    from torch.distributed import get_backend_config

    if device.type == "cuda" and "cuda:gloo" in get_backend_config(group):
        raise ValueError(
            "FSDP has its shards on a GPU, where gloo cannot gather them: call init_process_group('nccl'), or "
            "fully_shard with a mesh of processors"
        )


def cut_like(full: Tensor, parameter: Tensor) -> Tensor:
    """Return a tensor sharded like a parameter, from rank 0's whole one; all processes call it."""
    if not is_shard(parameter):
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(parameter.device), parameter.device_mesh, parameter.placements)


def shard_like(shard: Tensor, parameter: Tensor) -> Tensor:
    """Return the tensor like a parameter, sharded as it is, of which this is the shard that lies here."""
    if not is_shard(parameter):
        return shard
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        shard, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def add_sum_(shard: DTensor, addend: Tensor) -> None:
    """Add the sum over all processes of whole tensors to the `.grad` of a shard; all processes call it.

    Each entry is added in float32 at least, and rounded to the dtype of the shard once.
    """
    from torch.distributed.tensor import DTensor, Partial

    mesh, wide = shard.device_mesh, torch.promote_types(shard.dtype, torch.float32)
    parts = DTensor.from_local(addend.to(wide), mesh, [Partial()], run_check=False)
    own = parts.redistribute(mesh, shard.placements).to_local().to(shard.to_local().device, shard.dtype)
    total = shard_like(own, shard)
    shard.grad = total if shard.grad is None else shard.grad + total
    for hook in (getattr(shard, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(shard)  # as FSDP does


def replace_(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Put `change` of the whole parameter in its place, which it leaves alone if it is given back as it was."""
    before = whole(parameter.detach())
    after = change(before)
    if is_shard(parameter) or after.data_ptr() != before.data_ptr():
        parameter.copy_(cut_like(after, parameter))


def whole_state(state: Any) -> Any:
    """Return a state dict whose sharded tensors are whole; all processes call it."""
    return pytree.tree_map(lambda value: whole(value) if isinstance(value, Tensor) else value, state)


# --- FSDP's modules ----------------------------------------------------------------------------------------------


def plain_type(part: nn.Module) -> type[nn.Module]:
    """Return the class of a module before `fully_shard` put another before it."""
    kind = type(part)
    return kind.__mro__[2] if is_fsdp(part) else kind  # class FSDPNet(FSDPModule, Net)


def foreign_hooks(part: nn.Module) -> bool:
    """Whether a module has hooks that are not FSDP's own."""
    own = _own_hooks(part)
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(number not in own for table in hooks for number in table)


def hooked(parts: Iterable[tuple[str, nn.Module]]) -> str:
    """Return which part of a module has hooks that are not FSDP's own, or that all modules do; "" if none has."""
    if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return "every module of torch"
    return next((name or "the module" for name, part in parts if foreign_hooks(part)), "")


def settle(module: nn.Module) -> None:
    """Let the parameters of FSDP's modules be their shards, which after a forward pass alone they are not.

    Within a backward pass, which may run a forward pass again, nothing happens: FSDP sees to it.
    """
    if torch._C._current_graph_task_id() == -1:
        for part in _fsdp_parts(module):
            part.reshard()


def gathered(module: nn.Module) -> dict[int, nn.Parameter]:
    """Return the whole parameters that FSDP gathers, by the identity of their shards; all processes call it.

    Torch makes each of them once. Their memory comes and goes, also behind views of them.
    """
    for part in _fsdp_parts(module):
        part.unshard()
        part.reshard()
    return {id(p.sharded_param): p.unsharded_param for group in fsdp_groups(module) for p in group.fsdp_params}


def forget_gradients(module: nn.Module) -> None:
    """Drop what flowed back into whole parameters and was not reduced: it belongs to no batch any more."""
    for group in fsdp_groups(module):
        for parameter in group.fsdp_params:
            if "unsharded_accumulated_grad" in vars(parameter):  # from torch 2.15 on a name of the gradient below
                parameter.unsharded_accumulated_grad = None
            if getattr(parameter, "_unsharded_param", None) is not None:
                parameter._unsharded_param.grad = None


def finished_by_hand(module: nn.Module) -> bool:
    """Whether FSDP waits for `finalize_backward()` before it adds up gradients, which torch 2.15 brought."""
    contexts = [part._get_fsdp_state()._state_ctx for part in _fsdp_parts(module)]
    return any(getattr(context, "manual_backward_finalization", False) for context in contexts)


def is_fsdp(part: nn.Module) -> bool:
    """Whether `fully_shard` was called on a module."""
    home = sys.modules.get(_FSDP)
    return home is not None and isinstance(part, home.FSDPModule)


def cut_once(parameter: DTensor, ranks: int) -> bool:
    """Whether a parameter is cut along one axis into as many shards as there are ranks."""
    from torch.distributed.tensor import Shard

    mesh = parameter.device_mesh
    return mesh.ndim == 1 and mesh.size() == ranks and type(parameter.placements[0]) is Shard


def fsdp_groups(module: nn.Module) -> Iterator[Any]:
    """Yield FSDP's groups of parameters, of which torch has no public name."""
    for part in _fsdp_parts(module):
        state = part._get_fsdp_state()
        yield from getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group])


def _fsdp_parts(module: nn.Module) -> list[Any]:
    """Return FSDP's modules: there are none without its code, which others import, and a group of processes."""
    if _FSDP not in sys.modules or not torch.distributed.is_initialized():
        return []
    return [part for part in module.modules() if is_fsdp(part)]


def _own_hooks(part: nn.Module) -> set[int]:
    if not is_fsdp(part):
        return set()
    state: Any = part._get_fsdp_state()  # type: ignore[operator]
    pair = (state._pre_forward_hook_handle, state._post_forward_hook_handle)
    return {handle.id for several in pair for handle in getattr(several, "handles", (several,))}
