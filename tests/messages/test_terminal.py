"""Names with control characters are shown, and not obeyed, on a terminal."""

import io
import sys

from support.faults.hostile_names import write_hostile

from pipeline import __main__
from pipeline.messages.terminal import drawn_on, print_visibly, visible
from pipeline.monitor.progress import display_on

CLEAR = "\x1b[2J"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def begin(monkeypatch):
    """Have this test print on a terminal, as the command does, and return that."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    print_visibly()
    return terminal


def obeyed(text):
    return [c for c in text if c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")]


def test_a_command_shows_control_characters_of_names(tmp_path, monkeypatch):
    write_hostile(tmp_path)
    terminal = begin(monkeypatch)
    __main__.main(["runs", str(tmp_path)])
    said = terminal.getvalue()
    assert "\\x1b[2J" in said
    assert not obeyed(said)


def test_an_error_shows_control_characters_of_a_path(tmp_path, monkeypatch):
    terminal = begin(monkeypatch)
    assert __main__.main(["report", f"{tmp_path}/{CLEAR}\r\x9b"]) == 2
    assert "\\x1b[2J\\r\\x9b: there is no such folder" in terminal.getvalue()


def test_a_live_display_draws_and_shows_what_is_in_messages(monkeypatch):
    terminal = begin(monkeypatch)
    display = display_on(sys.stderr, 10)
    display.line(f"column {CLEAR} [bold]")
    display.close()
    said = terminal.getvalue()
    assert "column \\x1b[2J [bold]" in said
    assert CLEAR not in said
    assert "\x1b[" in said


def test_what_is_no_control_character_is_printed_as_it_is():
    assert visible("\u00e9t\u00e9\t\U0001f600 a\nb") == "\u00e9t\u00e9\t\U0001f600 a\nb"
    plain = io.StringIO()
    assert drawn_on(plain) is plain
