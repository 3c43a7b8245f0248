"""The workflow: everything that a user configures, as one frozen, strict value that is validated before a run."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ImportString,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from pipeline.errors import did_you_mean, refuse_remote, system_text
from pipeline.features.settings import AnyFeature, check_features
from pipeline.machine.limits import cpus
from pipeline.messages.uris import is_remote, refuse_keys, uri_of
from pipeline.own_code.code import run_file
from pipeline.settings import OR_LIST, SPLITS, Omitting, Strict, Tuple, read_json
from pipeline.settings.caps import Storage
from pipeline.settings.changes import change, kind_name
from pipeline.settings.columns import Category, Number, Sequence, Synthetic, Task, Time, check_sequences, check_widths
from pipeline.settings.init_from import Beginnings, FromParquet, FromRun
from pipeline.settings.optimizer import JUDGED, OF_NUMBERS, Optimizer, Plateau
from pipeline.settings.problems import REMOVED, message_of, problems
from pipeline.settings.run import MAX_KEPT, Commit, Metrics, Workers
from pipeline.settings.times import OutOfPlaceRule, SpanKind, check_spans

FilePath = Annotated[
    Path,
    Field(strict=False),
    PlainSerializer(lambda path: uri_of(path) if is_remote(path) else str(path), str, when_used="json"),
]


class Data(Omitting):
    later = ("time", "span", "label_delay", "sequences", "late", "ahead", "gap", "close", "complete")

    root: FilePath = Path(".")
    """Folder, or its address in an object store, to which the patterns below are relative. `~` is expanded; a relative
    root is relative to the current directory."""
    train: Annotated[tuple[str, ...], Field(min_length=1), OR_LIST]
    """Parquet files, directories or globs."""
    validation: Tuple[str] = ()
    test: Tuple[str] = ()
    """The same: files that are scored after each epoch, and at the end."""
    labels: Annotated[tuple[str, ...], Field(min_length=1), OR_LIST]
    """Columns of 0 and 1, or of any numbers if `tasks` say so."""
    tasks: Tuple[Task] = ()
    """Weights of labels in the loss, and the examples that have them. A label without a task has weight 1 and is in
    every example. Without any tasks, the loss is the mean over the examples of the sum over the labels."""
    weight: str | None = None
    """Column with the weight of each example in the loss and the metrics; by default 1."""
    numbers: Tuple[Number] = ()
    categories: Annotated[tuple[Category, ...], Field(min_length=1), OR_LIST]
    sequences: Tuple[Sequence] = ()
    """Columns that the model sees: numbers, categories, and lists of past events. A name alone means default settings
    (except for sequences)."""
    features: Tuple[AnyFeature] = ()
    """Columns computed from other columns, in this order, and rules for rare values: Bucket, Standardize, Cross,
    Lookup, Calendar, Rare. `numbers`, `categories` and `metrics` can name the columns that they make."""
    statistics: FilePath | None = None
    """File written by `pipeline prepare statistics`, relative to `root`: means and edges of the features that omit
    them."""
    shuffle_window: Annotated[int, Field(ge=0)] = 1 << 17
    """Number of examples that are shuffled together; 0 keeps the order of the files."""
    synthetic: Synthetic | None = None
    """Data to generate under `root` if they do not exist yet."""
    time: Time | None = None
    """Event time of the training data. Training follows its order: span by span, with `schedule.epochs` passes over
    each."""
    span: SpanKind | None = None
    """Extent of a span: a "day" (the default with `time`) or an "hour" of `time`, a "value" of a column given by folder
    names, or one "file". Every span is scored before it is trained on, and no batch contains examples of two spans."""
    label_delay: str | None = None
    """Time from the end of a day or hour until its labels are known, such as "3 d" or "36 h". The span is trained on
    when data up to that time has arrived; by default, when the span has arrived."""
    late: OutOfPlaceRule = "refuse"
    """What becomes of rows of a span that the run has trained on: "refuse" the files, "take" the rows into the first
    later span of their file, or "drop" them."""
    ahead: OutOfPlaceRule = "refuse"
    """The same for rows of a span after the other spans of their file, and of times outside 1990 to 2100; "take" trains
    on them with the last of the other spans."""
    close: Literal["arrival", "next"] = "arrival"
    """When a span is trained on: when it has arrived, or when the "next" one has, until which it may come in parts."""
    complete: Annotated[str, Field(pattern=r"^(name|success|manifest:.+)$")] = "name"
    """When a file of a span is complete: once it has its "name"; once its folder, or one above within the given place,
    has a file _SUCCESS ("success"); or once a line of the text file NAME there is its path from there
    ("manifest:NAME")."""
    gap: str | None = None
    """Time between two spans of a file, such as "3 d", up to which neither is out of place; by default the length of a
    span."""

    @property
    def spans_by(self) -> SpanKind | None:
        """Extent of a span; None if the training data has no spans."""
        return self.span or ("day" if self.time else None)

    @model_validator(mode="after")
    def _spans_and_sequences_fit(self) -> Data:
        check_spans(self.spans_by, self.span, self.time is not None, self.label_delay, self.gap)
        check_sequences(self.sequences, self.categories)
        return self

    @model_validator(mode="after")
    def _addresses_have_no_keys(self) -> Data:
        side = [("features", feature.side_file) for feature in self.features if feature.side_file]
        side += [("statistics", self.statistics)] if self.statistics else []
        for name, place in (("root", self.root), *side, *((s, p) for s in SPLITS for p in getattr(self, s))):
            refuse_keys(f"data.{name}", place)
        return self

    @model_validator(mode="after")
    def _tasks_are_of_labels(self) -> Data:
        for n, task in enumerate(self.tasks):
            if task.label not in self.labels:
                hint = did_you_mean(task.label, self.labels, "there are")[1]
                raise ValueError(f"data.tasks[{n}].label is {task.label!r}, which is not in data.labels{hint}")
            if task.label in (other.label for other in self.tasks[:n]):
                raise ValueError(f"data.tasks[{n}] is a second task of label {task.label!r}; make them one")
            before = self.labels[: self.labels.index(task.label)]
            if task.where is not None and task.where not in before:
                raise ValueError(
                    f"data.tasks[{n}].where is {task.where!r}; expected a label that comes before {task.label!r} in "
                    f"data.labels: {', '.join(before) or 'there is none, so put the other one first'}"
                )
            if task.where is not None and not self.task_of(task.where).is_binary:
                raise ValueError(
                    f"data.tasks[{n}].where is {task.where!r}, which may be any number, as its loss says; name a "
                    "label that is 0 or 1"
                )
        return self

    @model_validator(mode="after")
    def _statistics_are_filled_in(self) -> Data:
        if self.statistics is None or not any(feature.lacks for feature in self.features):
            return self
        from pipeline.features.statistics import filled

        # A validated value is frozen, even for its validators.
        object.__setattr__(self, "features", filled(self.features, self.statistics, self.root))
        return self

    @model_validator(mode="after")
    def _features_fit(self) -> Data:
        names = [category.name for category in self.categories]
        check_features(self.features, names, self.labels, self.weight)
        return self

    def task_of(self, label: str) -> Task:
        return next((task for task in self.tasks if task.label == label), Task(label=label))

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """A task for each label, in order; the default task for a label without one."""
        return tuple(map(self.task_of, self.labels))

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Data:
        weight = [self.weight] if self.weight else []
        names = [*self.labels, *weight, *(n.name for n in self.numbers), *(c.name for c in self.categories)]
        names += [column for sequence in self.sequences for column in sequence.columns]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"columns named more than once: {', '.join(twice)}; name each column once")
        check_widths(self.categories, bool(self.sequences))
        return self


MODELS = "pipeline.models"
STAND_IN = "builtins.object"
"""Placeholder for a model class that is never called."""


def _dotted(kind: object, info: ValidationInfo) -> object:
    """Convert the short name of a model of this package to its dotted name. Raises ValueError if there is no such
    model. If the validation context has a class for the name, that class is used, because an import would find a
    different one if the user's code has changed."""
    if isinstance(kind, str) and kind in (info.context or {}):
        return (info.context or {})[kind]
    if not isinstance(kind, str) and not hasattr(kind, "__name__"):
        raise ValueError(f"expected a class or its name, got an object of type {type(kind).__name__}")
    if not isinstance(kind, str) or "." in kind.removeprefix(f"{MODELS}."):
        return kind
    name = kind.removeprefix(f"{MODELS}.")
    # Models are a layer above, and importing them takes seconds.
    known = importlib.import_module(MODELS).__all__
    if name in known:
        return f"{MODELS}.{name}"
    close, _ = did_you_mean(name, known)
    hint = f"; did you mean '{MODELS}.{close}'?" if close else ";"
    raise ValueError(f"no model {kind!r}{hint} Models: {', '.join(sorted(known))}, or the dotted name of your class")


Finite = Annotated[float, Field(allow_inf_nan=False)]


class Model(Strict):
    kind: Annotated[ImportString[Any], BeforeValidator(_dotted), PlainSerializer(kind_name, str, when_used="json")]
    """A `torch.nn.Module` class, its dotted name, or the name of a model of `pipeline.models`. The docstring of that
    package describes the requirements. Called as kind(num_fields=, num_numbers=, embedding_dim=, **args)."""
    embedding_dim: Annotated[int, Field(ge=0)] = 16
    """Number of embedding weights per row, and width of the embeddings that the model sees. A field may use fewer
    (`Category.width`). 0: first-order weights only."""
    init_std: Annotated[float, Field(ge=0.0)] = 0.01
    """Standard deviation of a new row's embedding weights; first-order weights start at 0."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `kind`, such as {"hidden": (400, 400)}."""
    initial_bias: Finite | dict[str, Finite] = 0.0
    """Constant added to the model's logits, in training and afterwards: log(rate / (1 - rate)) for the labels' positive
    rate makes training start at that rate. With several labels, constants by label; labels that are omitted have 0.
    Neither trained nor regularized."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the dense model's matrix products (torch.autocast). Rows, their gradients and all optimizer state
    are always float32."""
    compile: bool = False
    """Compile the forward and backward pass of full training batches (torch.compile) while the first blocks are read.
    Needs a C++ compiler. Affects the result's bits, as do the compiler and the number of threads."""
    compile_cache: FilePath | None = None
    """Folder that stores compiled code for later runs. `~` is expanded. By default torch's cache."""


class Schedule(Strict):
    batch_size: Annotated[int, Field(ge=1, le=1 << 31)]
    epochs: Annotated[int, Field(ge=1)] = 1
    """Number of examples per step, and number of passes over the training data, or over each of its spans."""
    block_batches: Annotated[int, Field(ge=1)] = 16
    """Maximum number of batches per block (k); fewer if the caps do not allow as many."""
    look_ahead: Annotated[int, Field(ge=1)] = 2
    """Maximum number of blocks that are planned and prefetched while one trains (L); fewer if the caps do not allow
    as many."""
    threads: Annotated[int, Field(ge=1, le=1 << 12)] = Field(default_factory=cpus)
    """Number of threads of `train`; by default one per CPU that this process may use. Affects the result's bits."""
    plateau: Plateau | None = None
    """Early stopping and learning rate reduction, based on the validation split. `epochs` is then a maximum."""


TEXT_FORMATS = (".json", ".toml")


MIN_FROZEN_EPS = 1e-6
MOST_INDICES = (1 << 31) - 1
"""Maximum number of values per batch, since 32-bit integers count them."""


class Workflow(Omitting):
    later = ("init_from",)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Name of the run, and of its folder in `runs`."""
    data: Data
    model: Model
    optimizer: Optimizer = Optimizer()
    storage: Storage = Storage()
    schedule: Schedule
    commit: Commit = Commit()
    metrics: Metrics = Metrics()
    workers: Workers = Workers()
    """Groups of settings; `help` of each class describes them."""
    init_from: Beginnings = ()
    """Rows and layers with which training starts, from another run (FromRun) or from Parquet files (FromParquet). They
    are read once, before the first commit, and not when the run resumes. Several sources are applied in order."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Location of the device tier and of training. "auto" uses a GPU if there is one."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Seed of the initial weights, of the order of examples, and of dropout."""

    def with_settings(self, settings: Mapping[str, Any]) -> Workflow:
        """Return the workflow with these fields changed, by dotted path, such as {"optimizer.rows.lr": 0.01,
        "model.kind": MyModel}. Unlike with pydantic's `model_copy`, the result is validated. If the kind of the row
        optimizer or of the model changes, fields and arguments that both kinds have are kept.

        Raises ValueError, with the path, the value, the rule and the closest name, if a path or a value is wrong."""
        changed: Workflow = change(self, settings.items(), "settings: ")
        return changed

    @model_validator(mode="after")
    def _beginning_fits(self) -> Workflow:
        tables = {category.table_name for category in self.data.categories}
        runs = [one for one in self.init_from if isinstance(one, FromRun)]
        if len(runs) > 1:
            raise ValueError(f"init_from names {len(runs)} runs; leave one, since a model has one dense part")
        for one in self.init_from:
            table = one.table_name if isinstance(one, FromParquet) else None
            if table is not None and table not in tables:
                hint = did_you_mean(table, tables, "there are")[1]
                raise ValueError(f"init_from.table is {table!r}, which is not a table of data.categories{hint}")
        if (
            self.init_from
            and self.optimizer.rows.kind == "ftrl"
            and not all(isinstance(one, FromRun) and one.optimizer_state for one in self.init_from)
        ):
            raise ValueError(
                "optimizer.rows is Ftrl, whose weights follow from its state, so weights alone are not enough; start "
                "from a run that was trained with Ftrl, with optimizer_state=True"
            )
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> Workflow:
        if self.optimizer.rows.kind == "ftrl" and self.model.embedding_dim and self.model.init_std:
            raise ValueError(
                "optimizer.rows is Ftrl, whose weights start at zero, but model.init_std is not 0; set it to 0, or "
                "use Ftrl for a model with first-order weights only (model.embedding_dim = 0)"
            )
        sequences = self.data.sequences
        values = self.schedule.batch_size * (
            len(self.data.categories) + sum(len(sequence.items) * sequence.max_length for sequence in sequences)
        )
        if sequences and values > MOST_INDICES:
            raise ValueError(
                f"a batch of schedule.batch_size {self.schedule.batch_size:,} may have {values:,} values with "
                f"max_length of data.sequences, but its index is limited to {MOST_INDICES:,}; lower one of them"
            )
        for category in self.data.categories:
            if category.width and category.width > self.model.embedding_dim:
                raise ValueError(
                    f"data.categories: {category.name!r} has width {category.width}, but a row has "
                    f"{self.model.embedding_dim} embedding weights; lower it, or raise model.embedding_dim"
                )
        if (both := self.commit.keep + self.storage.keep_spans) > MAX_KEPT:
            raise ValueError(
                f"commit.keep and storage.keep_spans would keep {both} commits, and at most {MAX_KEPT} can be kept; "
                "lower one of them"
            )
        merge, eps = self.optimizer.merge, self.optimizer.dense.eps
        if merge and merge.denominator == "frozen" and merge.k > 1 and eps < MIN_FROZEN_EPS:
            raise ValueError(
                f"optimizer.dense.eps is {eps}, but optimizer.merge has a frozen denominator: a weight whose gradient "
                f"was 0 for a long time would take far too large a step at its next gradient; set eps to at least "
                f"{MIN_FROZEN_EPS}, for example 1e-4"
            )
        biases = self.model.initial_bias if isinstance(self.model.initial_bias, dict) else {}
        if unknown := [label for label in biases if label not in self.data.labels]:
            raise ValueError(
                f"model.initial_bias has {unknown[0]!r}{did_you_mean(unknown[0], self.data.labels)[1]}, and the labels "
                f"are {', '.join(self.data.labels)}; name one of them, or give one number for all"
            )
        if self.model.initial_bias and getattr(self.model.kind, "multiplies_probabilities", False):
            first, second = self.data.labels[0], self.data.labels[-1]
            if not biases.get(second, 0.0) < biases.get(first, 0.0):
                raise ValueError(
                    f"model.initial_bias: in {self.model.kind.__name__} the probability of {second!r} is a part of "
                    f"that of {first!r}; give a bias for each label, the second one below the first"
                )
        plateau = self.schedule.plateau
        if self.optimizer.rows.kind == "ftrl" and plateau and plateau.lr_factor < 1:
            raise ValueError(
                "schedule.plateau.lr_factor is below 1, but optimizer.rows is Ftrl, which computes a weight from sums "
                "made with one learning rate, so the rate must not change; set lr_factor to 1"
            )
        if self.schedule.plateau and not self.data.validation:
            raise ValueError("schedule.plateau needs data.validation; name the files, or leave plateau out")
        if plateau and (label := plateau.metric.partition(":")[2]) and label not in self.data.labels:
            raise ValueError(
                f"schedule.plateau.metric is {plateau.metric!r}, but there is no label {label!r}"
                f"{did_you_mean(label, self.data.labels, 'there are')[1]}"
            )
        judged, _, label = plateau.metric.partition(":") if plateau else ("", "", "")
        if judged and (judged in OF_NUMBERS) == (task := self.data.task_of(label or self.data.labels[0])).is_binary:
            others = ", ".join(name for name in JUDGED if (name in OF_NUMBERS) != task.is_binary)
            raise ValueError(
                f"schedule.plateau.metric is {judged!r} of {task.label!r}, whose loss is {task.loss!r}; its metrics "
                f"are {others}"
            )
        if plateau and plateau.metric.startswith("gauc") and not self.metrics.group:
            raise ValueError(f"schedule.plateau.metric is {plateau.metric!r}, which needs metrics.group")
        if plateau and plateau.metric.startswith(("recall", "ndcg")) and not self.metrics.top:
            raise ValueError(f"schedule.plateau.metric is {plateau.metric!r}, which needs metrics.top")
        if self.schedule.plateau and self.data.spans_by:
            raise ValueError(
                "schedule.plateau judges epochs over the same data, but data.span trains on each span once; leave "
                "plateau out"
            )
        if self.metrics.guard is not None and not (self.data.spans_by and self.metrics.score_spans):
            raise ValueError("metrics.guard needs spans that are scored; set data.time or data.span, and score_spans")
        if self.metrics.score_arrivals and self.data.label_delay is None:
            raise ValueError("metrics.score_arrivals is for spans that wait for their labels; set data.label_delay")
        if self.metrics.guard is not None and not self.data.all_tasks[0].is_binary:
            raise ValueError(
                f"metrics.guard compares normalized entropies, but {self.data.labels[0]!r} may be any number; leave "
                "the guard out"
            )
        if self.metrics.top and not self.metrics.group:
            raise ValueError(
                f"metrics.top is {self.metrics.top}, but there are no groups to rank in; name a column in metrics.group"
            )
        if self.metrics.group and not any(task.is_binary for task in self.data.all_tasks):
            raise ValueError(
                "metrics.group is set, but its metrics need a label that is 0 or 1, which data.labels lacks; leave it "
                "out"
            )
        if self.schedule.plateau and not self.commit.keep_best:
            raise ValueError("schedule.plateau needs commit.keep_best, because the best epoch is tested")
        return self


def without_removed(kept: Any, only_empty: bool = False) -> Any:
    """Return a stored workflow, as JSON values, without the settings in REMOVED. Values that are not a workflow are
    returned unchanged. `only_empty`: keep those that have a value, such as a name or a list that is not empty."""
    if not isinstance(kept, dict):
        return kept

    def stays(setting: str, value: Any) -> bool:
        return setting not in REMOVED or bool(only_empty and value)

    return {
        part: {name: value for name, value in of.items() if stays(f"{part}.{name}", value)}
        if isinstance(of, dict)
        else of
        for part, of in kept.items()
    }


def read_kept(kept: Mapping[str, Any]) -> Workflow:
    """Return the workflow that a commit stores as JSON, with a placeholder for its model class, which is not imported.
    Raises ValueError if it is not a valid workflow."""
    return read_json(Workflow, json.dumps(without_removed({**kept, "model": kept["model"] | {"kind": STAND_IN}})))


def load(path: Path) -> Workflow:
    """Load the value named `workflow` from a Python file (for FILE.py:NAME, the value named NAME), or a workflow in
    JSON or TOML, whose `data.root` is relative to the file's folder. Python files can import others from their folder.

    Raises ValueError if there is no workflow or, with file and line, if the file is wrong.
    """
    refuse_remote("the workflow's file", path)
    if path.suffix in TEXT_FORMATS:
        return _load_text(path)
    before, colon, wanted = str(path).rpartition(".py:")
    path, wanted = (Path(f"{before}.py"), wanted) if colon else (path, "workflow")
    if not path.is_file():
        raise ValueError(f"{path} is not a file; name a Python file that holds a `workflow`")
    if path.suffix != ".py":
        raise ValueError(f"{path} is not a Python file")
    try:
        module = run_file(f"workflow_{path.stem}", path)
    except Exception as error:
        raise ValueError(message_of(error, path)) from error
    workflow = getattr(module, wanted, None)
    if not isinstance(workflow, Workflow):
        raise ValueError(f"{path} has no module-level `{wanted}` of type pipeline.workflow.Workflow")
    return workflow


def _load_text(path: Path) -> Workflow:
    """Load a workflow in JSON or TOML. Raises ValueError, with the file and the field, if it is not a workflow."""
    try:
        content = path.read_text()
    except (OSError, UnicodeError) as error:
        raise ValueError(system_text(error) or f"{path} cannot be read: {error}") from error
    try:
        fields = tomllib.loads(content) if path.suffix == ".toml" else json.loads(content)
        if not isinstance(fields, dict):
            raise ValueError(f"expected an object with the fields of a workflow, got {type(fields).__name__}")
        fields.pop("$schema", None)
        fields = without_removed(fields, only_empty=True)
        data = fields.get("data")
        if isinstance(data, dict) and isinstance(root := data.get("root", "."), str) and not is_remote(root):
            data["root"] = str(path.parent / Path(root).expanduser())
        workflow = Workflow.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as error:
        raise ValueError(
            "\n       ".join(f"{path}: {found.text}" for found in problems(error, in_json=True))
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    return workflow
