"""Machines that are not here: the shipped examples."""

from pathlib import Path

from pipeline.planner.machine import load_machine

EXAMPLES = Path(__file__).parents[2] / "workflows" / "machines"
LAPTOP = load_machine(EXAMPLES / "laptop.toml")
