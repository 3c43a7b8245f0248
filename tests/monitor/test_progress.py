"""Progress on a terminal and elsewhere."""

import io
import math
import threading

import pytest

from pipeline.monitor.progress import Progress, RowProgress, clock_time, run_line


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    return Terminal()


def run(stream, total=6_000_000, steps=(), seconds=1.0):
    clock = Clock()
    with Progress(total, stream, clock) as progress:
        for done in steps:
            clock.now += seconds
            progress.update(done, 0.43121)
    return stream.getvalue()


def test_plain_line_keeps_its_form():
    expected = "1,310,720/6,000,000 examples  187,571/s now  loss 0.4312  0:25 left"
    assert run_line(6_000_000, 1_310_720, 187_571.2, 0.43121) == expected
    assert run_line(10, 0, math.nan, math.nan).endswith("-/s now  loss nan  -:-- left")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0:00"), (24.2, "0:25"), (59.9, "1:00"), (3_723, "1:02:03"), (math.nan, "-:--"), (-3, "0:00")],
)
def test_time_left_reads_as_clock_time(seconds, text):
    assert clock_time(seconds) == text


def test_a_run_that_ends_early_is_shown_as_done():
    stream, clock = io.StringIO(), Clock()
    with Progress(1_000, stream, clock) as progress:
        for done in (100, 200):
            clock.now += 6
            progress.update(done, 0.5)
        progress.end_at(200)
    assert stream.getvalue().splitlines()[-1].startswith("200/200 examples")
    assert stream.getvalue().endswith("0:00 left\n")


def test_plain_lines_come_every_five_seconds_and_at_the_end():
    lines = run(io.StringIO(), total=1_200, steps=range(100, 1_300, 100)).splitlines()
    assert [line.split("/")[0] for line in lines] == ["100", "600", "1,100", "1,200"]
    # The time before the first update says nothing of the rest.
    assert "-/s" in lines[0]
    assert all("100/s" in line for line in lines[1:])


def test_the_rate_of_a_resumed_run_counts_only_its_own_examples():
    """890 of 1,000 examples were done before; then 10 a second."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(1000, stream, clock)
    progress.begin_at(890)
    with progress:
        for done in (900, 910):
            clock.now += 1.0
            progress.update(done, 0.5)
    assert "910/1,000 examples  10/s" in stream.getvalue()
    assert "0:09 left" in stream.getvalue()


def test_rate_is_that_of_recent_updates():
    slow_then_fast = [*range(1, 101), *range(1_100, 21_100, 1_000)]
    assert "1,000/s" in run(io.StringIO(), steps=slow_then_fast).splitlines()[-1]


def test_no_rate_is_shown_without_updates_or_time():
    assert run(io.StringIO()) == ""
    assert "-/s" in run(io.StringIO(), steps=[10], seconds=0.0)


def test_last_state_is_shown_when_the_run_fails():
    stream, clock = io.StringIO(), Clock()

    def fail():
        with Progress(10, stream, clock=clock) as progress:
            progress.update(1, 0.5)
            progress.update(2, 0.5)
            raise KeyError("stage")

    with pytest.raises(KeyError):
        fail()
    assert "2/10" in stream.getvalue().splitlines()[-1]


def test_terminal_shows_state_and_messages_without_a_thread(terminal):
    threads = threading.active_count()
    with Progress(1_000, terminal) as progress:
        progress.update(250, 0.4312)
        progress.line("look-ahead reduced [to 1]")
        assert threading.active_count() == threads
    text = terminal.getvalue()
    assert "250/1,000 examples" in text
    assert "loss 0.4312" in text
    assert "look-ahead reduced [to 1]\n" in text


def test_terminal_ends_with_the_last_update(terminal):
    assert "100/100 examples" in run(terminal, total=100, steps=[50, 100], seconds=0.01)


def test_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    plain = run(io.StringIO(), total=100, steps=[50, 100])
    assert plain.splitlines()[-1].startswith("100/100 examples")
    assert run(terminal, total=100, steps=[50, 100]) == plain


def test_default_stream_is_stderr(capsys):
    with Progress(10) as progress:
        progress.line("hello")
    assert capsys.readouterr().err == "hello\n"


def test_the_rate_of_a_preparation_counts_only_its_own_rows():
    clock, stream = Clock(), io.StringIO()
    progress = RowProgress("counting", 1000, stream, clock)
    progress.begin_at(500, 5000)
    with progress:
        clock.now += 10
        progress.update(600, 6000)
    assert stream.getvalue() == "counting  6,000 rows  100/s   60%  0:40 left\n"


def test_the_last_state_of_a_preparation_is_shown():
    clock, stream = Clock(), io.StringIO()
    with RowProgress("writing", 100, stream, clock) as progress:
        progress.update(0, 0)
        for done in (20, 100):
            clock.now += 2
            progress.update(done, 70_000 * done)
    assert stream.getvalue().splitlines() == [
        "writing  0 rows  -/s    0%  -:-- left",
        "writing  7,000,000 rows  1,750,000/s  100%  0:00 left",
    ]
