"""Progress of a preparation."""

import io
import math

from pipeline.monitor.row_progress import RowProgress, RowsDone


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_plain_line_keeps_its_form():
    assert str(RowsDone("writing", 250, 1000, 12_345_678, 1_234_567.4, 61.0)) == (
        "writing  12,345,678 rows  1,234,567/s   25%  1:01 left"
    )
    assert str(RowsDone("writing", 0, 10, 0, math.nan, math.nan)) == "writing  0 rows  -/s    0%  -:-- left"


def test_the_rate_counts_only_the_rows_of_this_process():
    clock, stream = Clock(), io.StringIO()
    progress = RowProgress("counting", 1000, stream, clock)
    progress.begin_at(500, 5000)
    with progress:
        clock.now += 10
        progress.update(600, 6000)
    assert stream.getvalue() == "counting  6,000 rows  100/s   60%  0:40 left\n"


def test_the_last_state_is_shown():
    clock, stream = Clock(), io.StringIO()
    with RowProgress("writing", 100, stream, clock) as progress:
        for done in (10, 20, 100):
            clock.now += 1
            progress.update(done, 7 * done)
    assert stream.getvalue().splitlines() == [
        "writing  70 rows  70/s   10%  0:09 left",
        "writing  700 rows  233/s  100%  0:00 left",
    ]
