"""How much memory this process may still take."""

from pathlib import Path

__all__ = ["available_memory"]

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return bytes that can be taken before the system ends processes; None where unknown.

    On Linux: what the kernel calls available, and no more than what a container's limit leaves.
    """
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    left = _left_in_group()
    return free if left is None else min(free, left)


def _left_in_group() -> int | None:
    """Return what the container's limit leaves, None without one; cached files count as free."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = int((_GROUPS / limit).read_text())
            taken = int((_GROUPS / used).read_text())
            lines = (_GROUPS / limit).with_name("memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            return max(0, most - taken + int(stat.get(cached, 0)))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
