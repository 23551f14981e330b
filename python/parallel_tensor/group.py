"""Group: the ranks of a job on one host."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._core import Group, boot_id
from .errors import Error, NotSupportedError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Group"]


def _from_process_group(
    process_group: ProcessGroup | None = None, timeout: float | None = None
) -> Group:
    """The group of a torch.distributed process group whose ranks are all on this host.

    Collective over the process group: one all_gather_object.

    Args:
        process_group: None is the default process group.
        timeout: Seconds, as for Group.

    Raises:
        NotSupportedError: Its ranks are on several hosts.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    answers: list[Any] = [None] * size
    dist.all_gather_object(answers, (boot_id(), secrets.token_hex(8)), group=process_group)
    hosts = [host for host, _ in answers]
    elsewhere = [r for r, host in enumerate(hosts) if host != hosts[rank]]
    if elsewhere:
        raise NotSupportedError(
            f"The process group spans hosts: ranks {elsewhere} are not on the host of rank {rank}. "
            "Pass a process group of the ranks of one host (torch.distributed.new_subgroups)."
        )
    return Group(rank=rank, size=size, name=f"process-group-{answers[0][1]}", timeout=timeout)


Group.from_process_group = staticmethod(_from_process_group)


@contextlib.contextmanager
def taking_part(group: Group, operation: str) -> Iterator[None]:
    """Runs the part of a collective call that comes before its exchange.

    What it raises is raised here, and the other ranks, which are waiting in the exchange, get a
    PeerError that holds it.
    """
    try:
        yield
    except Exception as error:
        # This rank's own error is the one to raise, whatever becomes of telling the others.
        with contextlib.suppress(Error):
            group._report_failure(operation, type(error).__name__, str(error))
        raise


def resolve(group: Group | None) -> Group:
    """The given group, or the one of the environment."""
    if group is None:
        return Group.from_env()
    if not isinstance(group, Group):
        raise TypeError(f"group must be a parallel_tensor.Group, not {type(group).__name__}")
    return group
