"""`pipeline`: the one command, with a subcommand for each thing that can be done."""

import subprocess
import sys
from importlib import import_module

import pytest

from pipeline.__main__ import COMMANDS, choices, main, parser_of, version

HEAVY = ("torch", "distributed", "dask", "numba", "pyarrow")


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["prepare", "statistics", "--help"], ["run", "missing.py"]], ids=" ".join
)
def test_help_and_a_missing_file_import_nothing_heavy(argv):
    code = (
        f"import sys\nfrom pipeline.__main__ import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imports {found}' if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("usage: " in done.stdout) == ("missing.py" not in argv)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_main_and_help(name, capsys):
    assert callable(import_module(COMMANDS[name][0]).main)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pipeline {name} ")


def test_an_option_has_one_meaning_in_all_commands():
    """The same name has the same value everywhere; what is written goes to --out, and what listens has --host."""
    meanings = {}
    for name in COMMANDS:
        for option, action in parser_of(name, ["csv"])._option_string_actions.items():
            meanings.setdefault(option, {})[name] = action.nargs, action.metavar
    assert {option: found for option, found in meanings.items() if len({*found.values()}) > 1} == {
        "--out": meanings["--out"]
    }
    assert {metavar for _, metavar in meanings["--out"].values()} == {"DIR", "FILE"}
    assert not {"--address", "--logdir", "--output", "--run-dir"} & meanings.keys() - {"--run-dir"}
    assert {*meanings["--host"]} == {*meanings["--port"]} == {"serve"}


def test_the_version_is_that_of_the_distribution(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pipeline {version()}\n"


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("", "run score --version"),
        ("serve", "--host --port"),
        ("score RUN --bad-values", "clip null refuse"),
        ("prepare csv", "--schema"),
        ("missing", ""),
    ],
)
def test_words_are_completed(words, some):
    found = {*choices(words.split())}
    assert {*some.split()} <= found
    assert bool(some) == bool(found)
    assert "--run-dir" not in found


def test_bash_completes_a_command():
    """With the function that `pipeline completion` prints."""
    script = f"""pipeline() {{ {sys.executable} -m pipeline "$@"; }}
source <(pipeline completion)
COMP_WORDS=(pipeline sc) COMP_CWORD=1
_pipeline pipeline sc pipeline
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["schema", "score"], done.stderr


def test_an_unknown_command_is_named_with_the_known_ones(capsys):
    assert main(["scroe"]) == 2
    assert "did you mean" in capsys.readouterr().err
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
        (["run", "workflows/quickstart.py", "--out", REMOTE], "--out"),
        (["init", "workflows", "--out", REMOTE + ".py"], "--out"),
        (["prepare", "criteo", "workflows", "--out", REMOTE], "--out"),
        (["score", REMOTE, "data", "--out", "none"], "the run"),
        (["score", "runs/none", "data", "--out", REMOTE], "--out"),
        (["export", "runs/none", "--out", REMOTE], "--out"),
        (["export", "runs/none", "--out", "none", "--publish", REMOTE], "--publish"),
        (["serve", REMOTE], "the folder"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_remote_storage_is_refused_with_the_argument(argv, named, capsys):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {named} is an address of s3, but it must be on a disk of this machine; ")
    assert "or mount the bucket as a folder" in said


@pytest.mark.parametrize(
    "argv",
    [["run"], ["init", "log", "--out"], ["tune", "my.py", "--out"], ["score", "run", "log", "--out"]],
    ids=lambda argv: argv[0],
)
def test_a_path_written_as_an_address_is_refused(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "file:///tmp/x.py"]) == 2
    assert capsys.readouterr().err.splitlines()[0].endswith(": write the path without file://, as /tmp/x.py")
    assert not [*tmp_path.iterdir()]
