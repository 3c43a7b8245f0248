"""`pipeline`: the one command, with a subcommand for each thing that can be done."""

import subprocess
import sys
from importlib import import_module

import pytest

from pipeline.__main__ import COMMANDS, main

HEAVY = ("torch", "distributed", "dask", "numba", "pyarrow")


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["run", "missing.py"]], ids=" ".join)
def test_help_and_a_missing_file_import_nothing_heavy(argv):
    code = (
        f"import sys\nfrom pipeline.__main__ import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imports {found}' if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("usage: " in done.stdout) == ("--help" in argv)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_subcommand_has_a_main_of_its_own(name, capsys):
    assert callable(import_module(COMMANDS[name][0]).main)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_an_unknown_command_is_named_with_the_known_ones(capsys):
    assert main(["tran"]) == 2
    said = capsys.readouterr().err
    assert "there is no command 'tran'" in said
    assert all(f"  {name}" in said for name in COMMANDS)
    assert main([]) == 2


REMOTE = "s3://bucket/log"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["run", REMOTE + ".py"], "the workflow's file"),
        (["run", "workflows/quickstart.py", "--run-dir", REMOTE], "--run-dir"),
        (["init", REMOTE, "--out", "none/my.py"], "a source"),
        (["init", "workflows", "--out", REMOTE + ".py"], "--out"),
        (["prepare", "criteo", REMOTE, "--out", "none"], "a source"),
        (["prepare", "criteo", "workflows", "--out", REMOTE], "--out"),
        (["score", REMOTE, "data", "--out", "none"], "the run"),
        (["score", "runs/none", REMOTE, "--out", "none"], "the data"),
        (["score", "runs/none", "data", "--out", REMOTE], "--out"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_store_is_refused_by_the_name_of_the_argument(argv, named, capsys):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {named} is 's3:/")
    assert "not on s3; copy them, or mount the bucket as a folder" in said
