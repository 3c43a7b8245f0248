"""Entry point of the command line: `pipeline COMMAND ...`. A command's module is imported only when the command is
called; `--help` and completion import only its arguments."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from pipeline.machine.process import begin_command

GROUPS = {
    "data": {
        "init": ("pipeline.init.main", "inspect Parquet, CSV or JSON files, and write a workflow that trains on them"),
        "prepare": ("pipeline.prepare.main", "make Parquet files and a workflow from raw logs"),
        "schema": ("pipeline.init.schema", "print the JSON schema of workflows, for editors"),
    },
    "training": {
        "run": ("pipeline.run", "train the workflow of a file; --explain shows the memory that it needs"),
        "tune": ("pipeline.tune.main", "try other settings, trial after trial, and write the best workflow"),
        "verify": ("pipeline.verify", "check every bit of a run; --repair goes back to the newest intact commit"),
    },
    "looking at runs": {
        "runs": ("pipeline.monitor.runs", "list runs, best first: metrics, and the settings that differ"),
        "report": ("pipeline.monitor.page.page", "write everything about a run to one HTML file"),
    },
    "using a model": {
        "score": ("pipeline.serving.score", "score Parquet files with a trained model"),
        "export": ("pipeline.serving.export", "write a folder with everything that scoring needs, without the run"),
        "serve": ("pipeline.serving.serve", "answer requests over HTTP with an exported model"),
    },
    "shell": {"completion": ("pipeline.__main__", "print a script with which bash completes commands and options")},
}
"""Commands by purpose: name, module with a `main(argv)`, and one line of help."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
PARSERS = {"run": "train_arguments"}
"""Functions of `pipeline.arguments` that are not named after the command."""
BASH = """\
_pipeline() {
    mapfile -t COMPREPLY < <(compgen -W "$(pipeline completion -- "${COMP_WORDS[@]:1:COMP_CWORD-1}")" -- "$2")
}
complete -o default -F _pipeline pipeline"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; 2 if there is no such command."""
    if argv is None:
        begin_command()
    argv = sys.argv[1:] if argv is None else list(argv)
    from pipeline.machine.signals import discard_output, end_at_interrupt, exit_code
    from pipeline.messages.terminal import print_visibly

    print_visibly()
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"pipeline {version()}")
        return 0
    if argv[0] not in COMMANDS:
        from pipeline.errors import did_you_mean

        close, _ = did_you_mean(argv[0], COMMANDS)
        hint = f"; did you mean {close!r}?" if close else ""
        print(f"error: there is no command {argv[0]!r}{hint}\n{usage()}", file=sys.stderr)
        return 2
    end_at_interrupt()
    try:
        if argv[0] == "completion":
            return completion(argv[1:])
        if {"-h", "--help"} & {*argv}:
            parser_of(argv[0], argv[1:]).parse_args(argv[1:])
        code: int = import_module(COMMANDS[argv[0]][0]).main(argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        return exit_code(discard_output())
    return code


def parser_of(name: str, argv: Sequence[str] = ()) -> ArgumentParser:
    """Parser of a command's arguments, made without importing the command. `argv`: the arguments; the parser of
    `prepare` depends on them."""
    if name == "prepare":
        from pipeline.prepare.arguments import TAKES, prepare_arguments, statistics_arguments

        if argv[:1] == ["statistics"]:
            return statistics_arguments()
        return prepare_arguments(next((word for word in argv if word in TAKES), None))
    make: Callable[[], ArgumentParser] = getattr(
        import_module("pipeline.arguments"), PARSERS.get(name, f"{name}_arguments")
    )
    return make()


def completion(argv: Sequence[str]) -> int:
    """Print the completion script for bash or, after "--", the candidates for the word that follows the given words."""
    from pipeline.arguments import completion_arguments

    if "--" not in argv:
        completion_arguments().parse_args(argv)
        print(BASH)
    else:
        print("\n".join(choices(argv[argv.index("--") + 1 :])))
    return 0


def choices(words: Sequence[str]) -> Iterator[str]:
    """Candidates for the next word: commands, values of the last option if it has choices, or the command's options.
    Bash adds files."""
    if not words:
        yield from [*COMMANDS, "--help", "--version"]
    elif words[0] in COMMANDS:
        options = parser_of(words[0], words[1:])._option_string_actions
        of_last = options.get(words[-1])
        if of_last and of_last.choices:
            yield from map(str, of_last.choices)
        else:
            yield from (option for option, action in options.items() if action.help != SUPPRESS)


def version() -> str:
    """Version of the installed package; "unknown" in a clone that is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("ctr-pipeline")
    except PackageNotFoundError:
        return "unknown"


def usage() -> str:
    """List all commands by group."""
    lines = ["usage: pipeline COMMAND ...   (pipeline COMMAND --help shows its arguments)"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:16}{what}" for name, (_, what) in commands.items())]
    return "\n".join([*lines, "", "pipeline --version prints the version."])


if __name__ == "__main__":
    sys.exit(main())
