"""Facts about the machine that a run was done on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from slipway.report import HostFacts


def this_host() -> HostFacts:
    """CPU, cores that this process may use, memory and versions of this machine; what cannot be read is said to be unknown."""
    return HostFacts(
        cpu=_cpu() or platform.processor() or platform.machine() or "unknown",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        os=_system(),
        python=platform.python_version(),
    )


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        return None
    return None


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"
