"""The folder for files that can be regenerated."""

import os
import tempfile
from pathlib import Path

from pipeline.machine.cache import CACHE_FOLDER, cache_folder


def test_the_cache_is_where_the_user_wants_it(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.delenv(CACHE_FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pipeline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "pipeline"
    monkeypatch.setattr(os.path, "expanduser", str)
    assert cache_folder() == Path(tempfile.gettempdir()), "a user without a home folder"
