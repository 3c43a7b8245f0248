"""Other systems than Linux get a sentence."""

import subprocess
import sys

import pytest

CODE = "import sys; sys.platform, sys.argv, sys.orig_argv = {!r}, [{!r}], ['python', '-m', 'pipeline']; {}"


@pytest.mark.parametrize(
    ("first", "use"),
    [("-m", "import pipeline"), ("x", "from pipeline.__main__ import main; main()"), ("x", "import pipeline.api")],
)
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_system_is_refused_in_a_sentence(platform, first, use):
    code = CODE.format(platform, first, use)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    *before, said = done.stderr.splitlines()
    in_python = use.endswith("api")
    assert said.startswith(f"{'ImportError: ' * in_python}pipeline runs on Linux, and this is {platform}")
    assert bool(before) == in_python
