"""A commit is found by its number or its name, or it is said which there are."""

import numpy as np
import pytest
from test_manifest import made

from pipeline.commits.manifest import Commits
from pipeline.commits.reading import hold
from pipeline.storage.files import Files


def test_a_run_without_a_commit_is_named(tmp_path):
    (tmp_path / "commits").mkdir()
    with pytest.raises(ValueError, match=f"{tmp_path} has no commit yet; train until the first one is taken"):
        hold(tmp_path)


def test_a_missing_best_commit_is_refused_with_those_there_are(tmp_path):
    commits = Commits(tmp_path, Files(), keep=2)
    commits.folder.mkdir()
    for number in (1, 2):
        commits.write_dense(number, {"w": np.zeros(1, np.float32)})
        commits.publish(made(number))
    with pytest.raises(ValueError, match=r"no best commit, .* \(it has 1, 2\); name last, or a number"):
        hold(tmp_path, "best")
