"""The arguments of every command. An option has the same name and help text everywhere. This module imports nothing
slow, so that `--help` and wrong options are answered immediately."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipeline.messages.sizes import format_size, parse_size

MAX_BODY_BYTES = (1 << 31) - 1
"""Maximum of `serve --max-bytes`: offsets of strings and lists have 32 bits."""
REPORT = "report.html"
SCORES = "folder for the scored files, one for each file of DATA; unfinished files are in its subfolder _scoring"
SERVABLE = "folder for the servable; unfinished files are in its subfolder _exporting"

BAD_VALUES = ("clip", "null", "refuse")


def command_parser(name: str, text: str) -> argparse.ArgumentParser:
    """Make a command's parser, without arguments yet."""
    return argparse.ArgumentParser(prog=f"pipeline {name}", description=text, allow_abbrev=False)


def train_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "run",
        "Train the model that a workflow file describes. Workflow, data and machine are checked first. Ctrl-C stops "
        "the training at a commit; the same command resumes it, and a finished training is not repeated.",
    )
    parser.add_argument(
        "workflow", type=Path, metavar="WORKFLOW", help="a Python file with a value named `workflow` (FILE.py:NAME for "
        "a value of another name), or a JSON or TOML file",
    )  # fmt: skip
    add_set(parser)
    parser.add_argument(
        "--out",
        dest="run_dir",
        type=Path,
        metavar="DIR",
        help="folder for everything that the run writes (default: runs/NAME)",
    )
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    add_fresh(parser, "an earlier run")
    parser.add_argument(
        "--extend", nargs="+", metavar="DATA",
        help="continue the run with these files, folders or patterns; its data must have spans (data.time, data.span)",
    )  # fmt: skip
    parser.add_argument(
        "--known-ok", action="store_true", help="with --extend: skip files that the run has already trained on"
    )
    parser.add_argument(
        "--rewind", metavar="SPAN",
        help="do not train: go back to the commit before this span, such as 2026-11-24, and so undo it and what was "
        "trained after it (see storage.keep_spans); the next command trains again",
    )  # fmt: skip
    parser.add_argument(
        "--like", type=Path, metavar="RUN",
        help="train a new run on the spans and files of RUN, in the same order: it has RUN's fingerprint",
    )  # fmt: skip
    parser.add_argument(
        "--as-is", "--accept", nargs="+", default=[], metavar="SPAN",
        help="train on these spans as they are, though they lost rows, or the guard objects to them",
    )  # fmt: skip
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="SPAN", help="give these spans up: their files are not waited for"
    )
    parser.add_argument(
        "--close", action="store_true", help="also train on the last span, for which data.close='next' awaits more rows"
    )
    parser.add_argument("--no-score", action="store_true", help="do not score spans of time before they are trained on")
    parser.add_argument(
        "--serial", action="store_true", help="train in one thread, one stage after the other, without Dask"
    )
    add_workers(parser, "train with N processes, one for each GPU if there are any")
    add_scheduler(parser)
    parser.add_argument(
        "--dashboard", metavar="ADDRESS",
        help="address of Dask's dashboard: PORT (this machine only), HOST:PORT, :PORT (any address of this machine), "
        "or off; if the port is taken, the next free one (default: any port, this machine only)",
    )  # fmt: skip
    parser.add_argument(
        "--track", choices=("mlflow", "tensorboard"),
        help="log settings, metrics and speed while the run trains, to MLflow (MLFLOW_TRACKING_URI) or into the folder "
        "tensorboard of the run",
    )  # fmt: skip
    parser.add_argument(
        "--explain", action="store_true",
        help="do not train: show what the run does, how much memory and disk it takes, and how many rows would be in "
        "memory when they are needed, for these and other sizes of memory",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="with --explain: also show every buffer")
    add_json(parser, "with --explain: print the same, and the workflow, as JSON")
    parser.set_defaults(held=False, listed=False)
    return parser


def init_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "init", "Inspect Parquet, CSV or JSON files, and write a workflow file that trains on them."
    )
    parser.add_argument("data", nargs="+", metavar="DATA", help="Parquet, CSV or JSON files, folders, or patterns")
    parser.add_argument(
        "--label", action="append", default=[], metavar="COLUMN",
        help="the column of 0 and 1 to predict (default: chosen by names and values); repeat it for several",
    )  # fmt: skip
    parser.add_argument(
        "--as", dest="roles", action="append", default=[], metavar="COLUMN=ROLE",
        help="set the role of a column: label, number, category, list, time, group (metrics are also computed within "
        "its values), weight (of the rows) or nothing; repeat it for several",
    )  # fmt: skip
    parser.add_argument(
        "--skip-bad", type=float, metavar="SHARE",
        help="make a copy without bad rows, such as broken lines or infinite numbers, up to this share of them",
    )  # fmt: skip
    parser.add_argument(
        "--try", dest="tries", action=argparse.BooleanOptionalAction, default=True,
        help="train a few candidates, including a linear model, on at most 200,000 rows, and write the one that is "
        "best on the validation split, which takes minutes; --no-try writes the first draft at once (default: --try)",
    )  # fmt: skip
    parser.add_argument(
        "--daily", action="store_true", help="write a workflow that trains on each day once, from the files themselves"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE",
        help="file to write, such as my.py; if the data are converted or split, my_data with Parquet files and, for "
        "text, my_schema.json are written next to it",
    )  # fmt: skip
    add_fresh(parser, "FILE, with the data and schema made for it,")
    return parser


def tune_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "tune",
        "Try other settings of a workflow with Optuna, and write the best workflow. Trials are judged on the "
        "validation split, and the best one is tested once. After an interruption or a kill, the same command resumes.",
    )
    parser.add_argument(
        "workflow", type=Path, metavar="WORKFLOW", help="as for `pipeline run`; a value named `tune` in it, a "
        "Tune(space=...), defines the search space (default: derived from the workflow)",
    )  # fmt: skip
    add_set(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the study (default: tuning/NAME)")
    add_fresh(parser, "an earlier study")
    at_least_1 = _number(int, 0, 1 << 20, "a whole number, 1 or more")
    parser.add_argument(
        "--trials", type=at_least_1, default=30, metavar="N", help="number of trials (default: %(default)s)"
    )
    parser.add_argument(
        "--hours", type=_number(float, 0, 1 << 20, "hours, above 0"), metavar="X",
        help="start no round of trials after this time (default: no limit)",
    )  # fmt: skip
    parser.add_argument(
        "--parallel",
        type=at_least_1,
        default=1,
        metavar="N",
        help="trials that run at the same time, each with its share of memory, disk and threads (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-tables", type=at_least_1, default=3, metavar="N",
        help="number of best trials that keep their tables (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--confirm", type=at_least_1, default=0, metavar="N",
        help="train the best three trials with N other seeds each, and take the one with the best mean",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the study (default: %(default)s)")
    add_workers(parser, "train each trial with N processes")
    add_json(parser, "print the trials and the best one as JSON")
    return parser


def schema_arguments() -> argparse.ArgumentParser:
    return command_parser("schema", "Print the JSON schema of workflow files, for editors.")


def runs_arguments() -> argparse.ArgumentParser:
    parser = command_parser("runs", "List the runs in a folder, best first: metrics, and the settings that differ.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="folder of the runs (default: runs)")
    add_json(parser, "print one JSON object for each run, with all settings that differ")
    return parser


def report_arguments() -> argparse.ArgumentParser:
    parser = command_parser("report", "Write everything about a run to one HTML file, which needs no network.")
    add_run(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"file to write (default: RUN/{REPORT})")
    return parser


def score_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "score",
        "Score Parquet files with a trained model, and write one file of scores for each. If the files have labels, "
        "also print the metrics. After an interruption, the same command scores the rest.",
    )
    add_run(parser)
    parser.add_argument("data", nargs="+", metavar="DATA", help="Parquet files, folders, or patterns")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=SCORES)
    add_commit(parser)
    parser.add_argument(
        "--keep", nargs="+", action="extend", default=[], metavar="COLUMN", help="columns to copy next to the scores"
    )
    add_bad_values(parser)
    add_fresh(parser, "what is in DIR")
    add_workers(parser, "score with N processes")
    add_workflow(parser, ", or to use its memory sizes")
    return parser


def export_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "export",
        "Write a servable: a folder with everything that scoring needs, without the run. The same command resumes an "
        "interrupted export.",
    )
    add_run(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=SERVABLE)
    add_fresh(parser, "what is in DIR")
    add_commit(parser)
    parser.add_argument(
        "--precision", choices=("float32", "float16", "int8"), default="float32",
        help="number format of the embeddings (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--prior-correction", default=1.0, metavar="SHARE", type=_number(float, 0, 1, "a share above 0 and up to 1"),
        help="share of the negative examples that the training data kept; scores are corrected to all negatives",
    )  # fmt: skip
    parser.add_argument(
        "--publish", type=Path, metavar="FOLDER", help="switch servers of FOLDER, which must contain DIR, to DIR"
    )
    add_workflow(parser)
    parser.add_argument(
        "--memory",
        type=size_argument,
        default="1 GiB",
        metavar="SIZE",
        help="memory for sorting rows (default: %(default)s)",
    )
    return parser


def serve_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "serve", "Answer requests for scores over HTTP (Open Inference Protocol v2) with a servable from `export`."
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a servable, or the FOLDER of `export --publish`, whose newest "
        "servable is served without a restart",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on; with any but the default, other machines can connect, without a password (default: "
        "%(default)s, this machine only)",
    )  # fmt: skip
    of_port = _number(int, -1, 65_535, "0 to 65535")
    parser.add_argument("--port", type=of_port, default=8000, help="port; 0 means any free one (default: %(default)s)")
    parser.add_argument(
        "--memory", type=size_argument, default="512 MiB", metavar="SIZE", help="cache of rows (default: %(default)s)"
    )
    parser.add_argument(
        "--max-requests", type=_number(int, 0, math.inf, "a number above 0"), default=16, metavar="N",
        help="maximum number of requests that wait or are being answered; further ones get status 503 (default: "
        "%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=_body_size, default="64 MiB", metavar="SIZE",
        help="maximum size of a request's body, and of all bodies in memory; JSON takes ten times as much memory "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", default=5.0, metavar="SECONDS",
        type=_number(float, 0, 86_400, "seconds, above 0 and up to a day"),
        help="drop a request that has not begun to read rows after this time, or whose body pauses that long; a "
        "request may ask for less (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("onnx", "torch"),
        help="library that computes scores (default: onnx, if it is installed and the servable has a model.onnx)",
    )  # fmt: skip
    add_bad_values(parser)
    add_workflow(parser)
    return parser


def verify_arguments() -> argparse.ArgumentParser:
    parser = command_parser("verify", "Check every bit that a run has committed, or every bit of a servable.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or of a servable")
    parser.add_argument("--repair", action="store_true", help="go back to the newest commit that is intact")
    return parser


def completion_arguments() -> argparse.ArgumentParser:
    parser = command_parser(
        "completion", "Print a script with which bash completes commands and options: source <(pipeline completion)"
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, such as runs/quickstart")


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=VALUE",
        help="change a setting of the workflow, such as schedule.epochs=2; repeat it for several",
    )  # fmt: skip


def add_workflow(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "--workflow", type=Path, metavar="FILE", help=f"the run's workflow file, if it defines the model class{more}"
    )


def add_fresh(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--fresh", action="store_true", help=f"start from scratch; {what} is renamed first (.1, .2, ...), not deleted"
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_workers(parser: argparse.ArgumentParser, what: str, default: int | None = None) -> None:
    parser.add_argument("--workers", type=int, default=default, metavar="N", help=what)


def add_scheduler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="use the workers of this Dask cluster, which must see the same files"
    )


def add_commit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--commit", help="which commit: best, last, or a number (default: best if there is one, else last)"
    )


def add_bad_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bad-values", choices=BAD_VALUES, default="clip",
        help="what to do with a number that its column cannot hold, such as infinity: use the nearest one that it can "
        "hold, give the row no score, or refuse all rows (default: %(default)s); such numbers are counted and reported",
    )  # fmt: skip


def size_argument(text: str) -> int:
    """Convert a size such as "512 MiB" to bytes. Raises ArgumentTypeError if it is not a size."""
    try:
        found = parse_size(text)
    except ValueError as error:
        # argparse drops the message of any other exception.
        raise argparse.ArgumentTypeError(str(error)) from None
    assert isinstance(found, int)
    return found


def _body_size(text: str) -> int:
    found = size_argument(text)
    if not 0 < found <= MAX_BODY_BYTES:
        raise argparse.ArgumentTypeError(f"expected 1 B to {format_size(MAX_BODY_BYTES)}, got {text}")
    return found


def _number(kind: Callable[[str], float], above: float, most: float, expected: str) -> Callable[[str], float]:
    """Make the type of an argument that is a number greater than `above` and at most `most`; `expected`: the same in
    words, for the error."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if above < (found := kind(text)) <= most:
                return found
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")

    return parse
