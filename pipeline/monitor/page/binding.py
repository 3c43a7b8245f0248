"""Bottleneck of a run: how busy each stage is, what training waits for, and what that stage waits for itself."""

from __future__ import annotations

from collections import Counter
from html import escape

from pipeline.monitor.page.headline import BINDS, STAGE_OF
from pipeline.monitor.page.humanized import percent
from pipeline.monitor.page.panel import Panel, meter, text_panel
from pipeline.monitor.page.stage_lanes import calls_of
from pipeline.monitor.page.style import STAGE_COLORS
from pipeline.monitor.page.time_use import shares_of
from pipeline.monitor.story import Lapse, Story
from pipeline.stages import STAGES


def binding_panel() -> Panel:
    """The panel "What binds"."""

    def text(story: Story) -> str:
        lately = story.lately()
        if not lately:
            return '<p class="nothing">No block is done yet.</p>'
        whole = story.ended is not None
        seconds = lately.tick.seconds if whole else lately.seconds
        stages = lately.tick.stages if whole else lately.stages
        busy = {stage: stages[stage] / seconds for stage in STAGES if stages.get(stage) and seconds > 0}
        bars = "".join(meter(stage, share, STAGE_COLORS[stage], percent(share)) for stage, share in busy.items())
        period = "the whole session" if whole else "the last seconds"
        said = escape(binds(story, lately)).replace(" %", "&nbsp;%")
        return f"<p>{said}</p>{bars}<p>Share of {period} in which a stage was busy.</p>"

    return text_panel("binding", text)


def binds(story: Story, lately: Lapse) -> str:
    """One or two sentences: what binds the run, and what that waits for."""
    shares = shares_of(story.ended.waits if story.ended else lately.waits)
    waits = {cause: share for cause, share in shares.items() if cause not in ("train", "unattributed")}
    waiting = sum(waits.values())
    if waiting < BINDS:
        return "Training binds: it hardly waits, so only faster training would make the run faster."
    share, cause = max((share, cause) for cause, share in waits.items())
    first = f"Training waits {percent(waiting)} of the time, most of it for {cause} ({percent(share)})."
    stage = STAGE_OF.get(cause)
    after = Counter(call.after for call in calls_of(story.blocks) if call.stage == stage and call.after)
    if not stage or not after:
        return first
    before, times = after.most_common(1)[0]
    return f"{first} So {stage} binds; in {times} of {sum(after.values())} sampled calls it waited for {before} last."
