"""Other systems than Linux are told so in a sentence."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", [False, True])
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_system_is_told_what_is_needed(platform, command):
    pretend = f"import sys; sys.platform = {platform!r}; sys.argv = {['-m'] if command else ['x.py']}; import pipeline"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"{'' if command else 'ImportError: '}pipeline runs on Linux, and this is {platform}")
    assert not command or len(done.stderr.splitlines()) == 1
