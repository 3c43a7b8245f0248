"""Output of --explain: a prediction as lines of text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.monitor.history import json_value
from pipeline.monitor.page.humanized import short_duration
from pipeline.planner.costs import Basis
from pipeline.planner.predict import Prediction, WithMemory

TIERS = ("device", "host")
WHOLE = 0.995
"""Minimum share of the examples for which a replay counts as covering the whole run."""


def lines_of(p: Prediction, of: Basis) -> list[str]:
    """Describe the prediction in a few lines and a table of the stages."""
    lines = ["", f"predicted for {of.machine.name}, {'serially' if of.serial else 'with overlap'}:", *stage_lines(p)]
    lines.append(
        f"speed:    {p.examples_per_second:,.0f} examples/s while it trains ({_bound(p)}); an epoch "
        f"{short_duration(p.epoch_seconds)} with evaluation and commits, the run {short_duration(p.run_seconds)}"
    )
    if of.work.compile_seconds:
        lines.append(
            f"compiling: {short_duration(of.work.compile_seconds)} before the first step; more if nothing is cached"
        )
    rates = [f"{tier} {p.hit_rates[tier]:.1%}" for tier in TIERS if not math.isnan(p.hit_rates[tier])]
    lines.append(
        f"hits:     {', '.join(rates) or 'none'} of the keys that reach it; {p.disk_rows_per_second:,.0f} rows/s "
        f"from disk, {format_size_up(int(p.disk_bytes_per_second))}/s{_extrapolated(of)}"
    )
    lines.append(
        f"commits:  {p.commits:,}, each {short_duration(p.commit_seconds)} and {format_size_up(int(p.commit_bytes))}"
    )
    lines.append(
        f"at most:  {format_size_up(int(p.ram_bytes))} of RAM; at the end {int(of.forecast.keys):,} keys, "
        f"{format_size_up(int(p.disk_bytes))} on disk, key map {format_size_up(int(p.map_bytes))}"
    )
    if p.price is not None:
        epochs = max(1, of.setup.workflow.schedule.epochs)
        lines.append(
            f"price:    {p.price:,.2f}, {p.price / epochs:,.2f} an epoch, at {of.machine.price_per_hour:,.2f} an hour"
        )
    return lines + advice(p, of)


def stage_lines(p: Prediction) -> list[str]:
    """Table of the stages of an average training block."""
    lines = [f"{'stage':12}{'ms a block':>12}{'CPU ms':>12}   of {p.block_examples:,.0f} examples, each stage alone"]
    for name, cost in p.block.stages.items():
        mark = "   <- binds" if name == p.block.binds else ""
        lines.append(f"{name:12}{1e3 * cost.seconds:12,.1f}{1e3 * cost.cpu_seconds:12,.1f}{mark}")
    return [*lines, f"{'together':12}{1e3 * p.block.seconds:12,.1f}"]


def advice(p: Prediction, of: Basis) -> list[str]:
    """Lines about what does not fit the machine or would end the run early."""
    lines = [f"the run would stop early: {of.forecast.stopped}"] if of.forecast.stopped else []
    if p.ram_bytes > of.machine.ram:
        lines.append(
            f"more RAM than the machine's {format_size_up(of.machine.ram)}: lower storage.host or storage.device"
        )
    return lines


def lines_of_others(others: Mapping[str, WithMemory]) -> list[str]:
    """Describe the predictions with other memory, one line each."""
    lines = []
    for name, of in others.items():
        text = of.why_not or ""
        if p := of.prediction:
            text = (
                f"{p.examples_per_second:,.0f} examples/s, {p.disk_rows_per_second:,.0f} rows/s from disk, at most "
                f"{format_size_up(int(p.ram_bytes))} of RAM"
            )
        lines.append(f"{name + ':':10}with {format_size_down(of.memory)} of memory {text}")
    return lines


def as_json(p: Prediction, of: Basis, others: Mapping[str, WithMemory] = MappingProxyType({})) -> dict[str, Any]:
    """Return a prediction as JSON values, with its inputs and the predictions with other memory."""
    return dict(json_value({
        **asdict(p),
        "machine": of.machine.model_dump(mode="json"),
        "work": asdict(of.work),
        "replay": asdict(of.forecast),
        "other_memory": {name: asdict(other) for name, other in others.items()},
    }))  # fmt: skip


def _bound(p: Prediction) -> str:
    return "the cores are busy" if p.block.binds == "cores" else f"{p.block.binds} binds"


def _extrapolated(of: Basis) -> str:
    share = of.forecast.replayed
    return f" (from {share:.0%} of the examples)" if share < WHOLE else ""
