"""The constants of a machine that is not here: the shipped examples, and one message for each mistake in a file."""

import re

import pytest
from made_machines import EXAMPLES

from pipeline.planner.machine import load_machine

TEXT = (EXAMPLES / "laptop.toml").read_text()


@pytest.mark.parametrize(("name", "gpus"), [("h100", 1), ("h100x8", 8), ("laptop", 0)])
def test_a_shipped_machine_loads_and_says_where_its_constants_come_from(name, gpus):
    machine = load_machine(EXAMPLES / f"{name}.toml")
    assert (machine.gpus, machine.workers) == (gpus, max(1, gpus))
    assert "Nothing here was measured on" in (EXAMPLES / f"{name}.toml").read_text()


def test_no_shipped_machine_is_left_out_here():
    assert {path.stem for path in EXAMPLES.iterdir()} == {"h100", "h100x8", "laptop"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cores = 8", "cores = 0", "cores: expected at least 1 (got 0)"),
        ("cores = 8", "coers = 8", "Machine has no field 'coers'; did you mean 'cores'?"),
        ("cores = 8\n", "", "Machine needs 'cores'"),
        ('ram = "15 GiB"', 'ram = "15 GB"', "15 GB"),
        ("find_seconds = 5.2e-8", "find_seconds = 0", "find_seconds: expected more than 0.0 (got 0)"),
        ("beside = 0.3", 'beside = "much"', "rates.beside: expected a number (got 'much')"),
        ("beside = 0.3", "beside = nan", "nan"),
        ("[rates]", "[rate]", "Machine has no field 'rate'; did you mean 'rates'?"),
        ("cores = 8", "cores = 8\ngpus = 2", "gpus is 2, so Machine needs 'gpu_memory' and 'link_bytes_per_second'"),
        ("cores = 8", "cores == 8", "cannot be read: "),
    ],
)
def test_a_wrong_file_is_one_message_with_file_field_and_value(tmp_path, old, new, said):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        load_machine(path)
    assert str(raised.value).startswith(f"--on {path}")


def test_a_file_without_rates_and_no_file_are_told(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.partition("[rates]")[0])
    with pytest.raises(ValueError, match=r"needs 'rates', from which the cost .* see workflows/machines"):
        load_machine(path)
    with pytest.raises(ValueError, match=r"none.toml cannot be read: .*No such file"):
        load_machine(tmp_path / "none.toml")
