"""Mistakes of a new user: every message names the place and what makes it right, and following it ends in a workflow
that is ready to run."""

import pytest
from support.depth import some
from support.faults import mistakes

from pipeline.device.device import RAM
from pipeline.errors import error_text
from pipeline.preflight.setup import set_up
from pipeline.settings.changes import override
from pipeline.workflow import load

PARTS, OF_EACH = 20, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("mistakes")
    mistakes.write_data(found)
    return found


def said_about(case, folder):
    """The message with which loading or the preflight refuses the case; None if they take it."""
    path = folder / "ml1m.py"
    path.write_text(case.text)
    try:
        _, source = set_up(override(load(path), case.settings), RAM, lambda line: None)
    except (ValueError, OSError) as error:
        return error_text(error)
    source.close()
    return None


def test_the_workflow_without_a_mistake_is_accepted(folder):
    assert said_about(mistakes.good(folder), folder) is None


@pytest.mark.parametrize("part", some(range(PARTS), *range(0, PARTS, 4)))
def test_a_mistake_is_repaired_by_what_its_message_says(folder, part):
    for seed in range(part, PARTS * OF_EACH, PARTS):
        left = mistakes.draw(seed, folder)
        names, case = [m.name for m in left], mistakes.good(folder)
        for mistake in left:
            case = mistake.make(case)
        for _ in range(6):
            if (message := said_about(case, folder)) is None:
                break
            meant = [m for m in left if all(part in message for part in m.expected)]
            assert meant, f"seed {seed}, {names}: {message}"
            assert len(message) < 1000, "long values are shortened"
            case = meant[0].repair(case, message)
        else:
            raise AssertionError(f"seed {seed}, {names}: still {message}")
