"""The processor of this machine."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Model name of the processor, or its architecture if the system does not report the model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
