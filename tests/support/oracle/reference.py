"""The plain trainer that every run must equal, bit for bit: one dictionary of rows, no pipeline, no tiers.

It has its own code for reading the files, processes one batch after another, and uses the slow twins of the kernels. It
shares only the model, the dense optimizer, the order of examples and the definition of a fingerprint with the product.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from support.oracle.features import RareValues, with_made

from pipeline.commits.flush import fingerprint
from pipeline.data import order
from pipeline.kernels.dedup import sources_reference, unique_keys_reference
from pipeline.kernels.hashing import (
    hash_bytes_reference,
    hash_integer_reference,
    missing_key,
    row_hash_reference,
    shared_key,
    table_salt,
)
from pipeline.kernels.init_rows import init_weights_reference
from pipeline.kernels.narrow_rows import noise_reference, round_reference
from pipeline.kernels.pool import pool_reference
from pipeline.kernels.row_rules import RULE_NUMBERS, adam_size, step_reference
from pipeline.kernels.segment_sum import bag_scale, segment_sum_reference
from pipeline.machine.limits import aligned_empty
from pipeline.models.losses import binary_cross_entropy
from pipeline.models.ragged import SequenceValues
from pipeline.optim.dense import clip_factor
from pipeline.storage.layout import NUMBER_FORMATS
from pipeline.training.build import build_model, has_batch_norm, row_layout
from pipeline.training.dense_state import dense_state
from pipeline.training.learner import seed_of_step
from pipeline.workflow import Category, Workflow


def key_of(value: object, column: str, table: str) -> int:
    if value is None:
        return int(missing_key(column))
    if isinstance(value, str):
        return hash_bytes_reference(value.encode(), int(table_salt(table)))
    return hash_integer_reference(int(value), int(table_salt(table)))


def aligned(values: object) -> torch.Tensor:
    array = np.asarray(values, np.float32)
    copy = aligned_empty(array.shape, np.float32)
    copy[...] = array
    return torch.from_numpy(copy)


def gradient(leaf: torch.Tensor) -> np.ndarray:
    """Gradient of a leaf; zeros if the model did not use it."""
    return np.zeros(leaf.shape, np.float32) if leaf.grad is None else leaf.grad.numpy()


def has_label(data, example: dict[str, object], label: str) -> bool:
    """True if an example has a label: the value is not null, and the label named by the task's `where`, if any, is
    1."""
    where = {task.label: task.where for task in data.tasks}.get(label)
    value = example[label]
    return (value is not None and value == value) and (
        not where or (has_label(data, example, where) and example[where] == 1)
    )


def losses_by_task(data, output, labels_BT, weights_BT):
    """[T] mean loss of each label over the examples that have it."""
    tasks = {task.label: task for task in data.tasks}
    columns = []
    for t, name in enumerate(data.labels):
        outputs_B, labels_B = output.reshape(labels_BT.shape)[:, t], labels_BT[:, t]
        loss, delta = (tasks[name].loss, tasks[name].delta) if name in tasks else ("cross_entropy", 1.0)
        columns.append({
            "cross_entropy": lambda x, y, d: torch.nn.BCEWithLogitsLoss(reduction="none")(x, y),
            "squared": lambda x, y, d: torch.nn.MSELoss(reduction="none")(x, y),
            "huber": lambda x, y, d: torch.nn.HuberLoss(reduction="none", delta=d)(x, y),
        }[loss](outputs_B, labels_B, delta))  # fmt: skip
    return (torch.stack(columns, 1) * weights_BT).sum(0) / weights_BT.sum(0).clamp_min(1e-30)


Groups = list[list[dict[str, object]]]


def spans_of(data) -> list[tuple[str, Groups]]:
    """Name and examples of each span of the training data, in order, as parts of row groups, found by plain loops."""
    spans: list[tuple[str, Groups]] = []
    files = [f for pattern in data.train for f in sorted(Path(data.root).glob(pattern))]
    for file in files:
        opened = pq.ParquetFile(file)
        in_path = dict(part.split("=") for part in file.parts if "=" in part)
        for number in range(opened.num_row_groups):
            last = None
            for example in opened.read_row_group(number).to_pylist():
                name = name_of_span(data, file, in_path, example)
                if not spans or spans[-1][0] != name:
                    spans.append((name, []))
                if last != name:
                    spans[-1][1].append([])
                last = name
                spans[-1][1][-1].append(example)
    return [(name, [with_made(data, group) for group in groups]) for name, groups in spans]


def name_of_span(data, file: Path, in_path: dict[str, str], example: dict[str, object]) -> str:
    if data.spans_by == "file":
        return str(file.relative_to(data.root))
    time = in_path.get(data.time.name, example.get(data.time.name))
    if data.spans_by == "value":
        return time
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if data.time.unit:
        time = datetime.fromtimestamp(time / {"s": 1, "ms": 1000, "us": 10**6}[data.time.unit], ZoneInfo("UTC"))
    if getattr(time, "tzinfo", None):
        time = time.astimezone(ZoneInfo(data.time.zone or "UTC"))
    return time.strftime("%Y-%m-%d" if data.spans_by == "day" else "%Y-%m-%dT%H")


def end_of(name: str) -> datetime | None:
    """End of a day or an hour; None for other kinds of spans."""
    for form, length in (("%Y-%m-%d", timedelta(days=1)), ("%Y-%m-%dT%H", timedelta(hours=1))):
        with suppress(ValueError):
            return datetime.strptime(name, form) + length
    return None


def delay_of(text: str | None) -> timedelta | None:
    return None if text is None else timedelta(**{{"d": "days", "h": "hours"}[text[-1]]: float(text[:-1])})


class Reference:
    """Plain trainer: `train()` runs all epochs; afterwards, `fingerprint` and `scores` are those that a run must
    have."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.row = row_layout(workflow)
        self.rare = RareValues(workflow.data)
        self.schema = pq.read_schema(next(Path(workflow.data.root).glob(workflow.data.train[0])))
        bias = workflow.model.initial_bias
        self.biases = [bias.get(n, 0.0) if isinstance(bias, dict) else bias for n in workflow.data.labels]
        without_bias = workflow.model.model_copy(update={"initial_bias": 0.0})
        self.model = build_model(workflow.model_copy(update={"model": without_bias}))
        dense = workflow.optimizer.dense
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad} if dense.average else {}
        self.averages = {name: parameter.detach().numpy().copy() for name, parameter in self.trained.items()}
        parameters = list(self.model.parameters()) or [torch.nn.Parameter(torch.empty(0))]
        self.optimizer = torch.optim.Adam(
            parameters, lr=dense.lr, betas=(dense.beta1, dense.beta2), eps=dense.eps, fused=True
        )
        self.factors: list[np.float32] = []
        self.clipped: list[bool] = []
        self.rows: dict[int, dict[str, np.ndarray]] = {}
        self.counts: dict[int, tuple[int, int]] = {}
        self.widths: dict[int, int] = {}
        """Number of embedding weights that the field of each key uses."""
        self.step = 0
        self.scores: list[tuple[str, list[float], list[float]]] = []

    def examples(self, split: str, epoch: int) -> list[dict[str, object]]:
        data = self.workflow.data
        files = sorted(f for pattern in getattr(data, split) for f in Path(data.root).glob(pattern))
        groups = [f.read_row_group(g).to_pylist() for f in map(pq.ParquetFile, files) for g in range(f.num_row_groups)]
        groups = [with_made(data, group) for group in groups]
        if split == "train":
            return self.shuffled(groups, epoch)
        return [example for group in groups for example in group]

    def shuffled(
        self, groups: list[list[dict[str, object]]], epoch: int, span: int | None = None
    ) -> list[dict[str, object]]:
        """Examples of the row groups, or of their parts in a span, in the order in which a pass trains on the
        examples."""
        data, seed = self.workflow.data, self.workflow.seed
        if not order.is_shuffled("train", data.shuffle_window):
            return [example for group in groups for example in group]
        line = [example for g in order.group_order(len(groups), seed, epoch, span) for example in groups[g]]
        shuffled = []
        for window, first in enumerate(range(0, len(line), data.shuffle_window)):
            part = line[first : first + data.shuffle_window]
            shuffled += [part[i] for i in order.window_order(len(part), seed, epoch, window, span)]
        return shuffled

    def train(self) -> Reference:
        torch.set_num_threads(self.workflow.schedule.threads)
        epochs = self.workflow.schedule.epochs
        if self.workflow.data.spans_by:
            return self.train_spans(epochs)
        for epoch in range(epochs):
            for batch in self.batches("train", epoch):
                self.train_batch(batch)
            self.evaluate("validation", epoch)
        self.evaluate("test", epochs - 1)
        return self

    def train_spans(self, epochs: int) -> Reference:
        """Score each span, then train on it, once its labels are known by the end of the span that came last."""
        spans = spans_of(self.workflow.data)
        ends = [end_of(name) for name, _ in spans]
        delay = delay_of(self.workflow.data.label_delay)
        waiting: list[int] = []
        for came in range(len(spans)):
            waiting.append(came)
            due = [n for n in waiting if delay is None or ends[n] + delay <= ends[came]]
            waiting = [n for n in waiting if n not in due]
            for n in due:
                name, groups = spans[n]
                if self.workflow.metrics.score_spans:
                    self.evaluate_examples(f"span {name}", [example for group in groups for example in group])
                for epoch in range(epochs):
                    for batch in self.cut(self.shuffled(spans[n][1], epoch, n), trains=True):
                        self.train_batch(batch)
            if due:
                self.evaluate("validation", epochs - 1)
        self.evaluate("test", epochs - 1)
        return self

    def batches(self, split: str, epoch: int) -> list[list[dict[str, object]]]:
        return self.cut(self.examples(split, epoch), split == "train")

    def cut(self, examples: list[dict[str, object]], trains: bool) -> list[list[dict[str, object]]]:
        """Examples as batches, in order."""
        size = self.workflow.schedule.batch_size
        batches = [examples[first : first + size] for first in range(0, len(examples), size)]
        if trains and len(batches) > 1 and len(batches[-1]) == 1 and has_batch_norm(self.model):
            # Batch norm needs two examples, so a last batch of one is merged into the previous batch.
            batches[-2:] = [batches[-2] + batches[-1]]
        return batches

    def add_to_averages(self) -> None:
        share = np.float32(1 / min(self.step, self.workflow.optimizer.dense.average or 1))
        for name, parameter in self.trained.items():
            self.averages[name] += (parameter.detach().numpy() - self.averages[name]) * share

    def evaluate(self, split: str, epoch: int) -> None:
        self.evaluate_examples(split, self.examples(split, epoch))

    def evaluate_examples(self, name: str, examples: list[dict[str, object]]) -> None:
        plain = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        self.set_weights({name: torch.from_numpy(average) for name, average in self.averages.items()})
        self.evaluate_with_these_weights(name, examples)
        self.set_weights(plain)

    def set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, weight in weights.items():
                self.trained[name].copy_(weight)

    def evaluate_with_these_weights(self, name: str, examples: list[dict[str, object]]) -> None:
        scores: list[float] = []
        labels: list[float] = []
        for batch in self.cut(examples, trains=False):
            with torch.inference_mode():
                self.model.eval()
                output = self.forward(batch, create=False)[0]
            scores += output.tolist()
            labels += [float(example[self.workflow.data.labels[0]] or 0) for example in batch]
        if scores:
            self.scores.append((name, scores, labels))

    def row_of(self, key: int, create: bool) -> dict[str, np.ndarray]:
        if key in self.rows:
            return self.rows[key]
        width = self.row.num_weights
        weights = np.zeros(width, np.float32)
        w = self.workflow
        weights[: self.row.embedding_dim] = init_weights_reference(
            key, w.seed, w.model.init_std, self.row.embedding_dim
        )
        weights[self.widths.get(key, self.row.embedding_dim) : self.row.embedding_dim] = 0
        shape = (2, 1) if w.optimizer.rows.kind == "rowwise_adagrad" else (2, width)
        row = {"w": weights, "state": np.zeros(shape, np.float32)}
        self.store(row, key, 0)
        if self.moves_absent_rows:
            # A new row is treated as if it had existed since before the first step.
            for step in range(1, self.step + (not create)):
                self.move(row, np.zeros(width, np.float32), step)
        if create:
            self.rows[key] = row
        return row

    @property
    def moves_absent_rows(self) -> bool:
        rows = self.workflow.optimizer.rows
        return rows.semantics == "dense" and rows.kind != "ftrl" and (rows.kind == "adam" or rows.l2 > 0)

    def move(self, row: dict[str, np.ndarray], grad: np.ndarray, step: int, count: int = 1) -> None:
        """Apply one step of the optimizer to one row."""
        o = self.workflow.optimizer.rows
        size, eps, settings, clip = o.lr, getattr(o, "eps", 0.0), (0.0, 0.0, 0.0), None
        l2 = 0.0 if o.kind == "ftrl" else o.l2
        if o.kind == "adam":
            size, settings = adam_size(o.lr, o.beta1, o.beta2, step), (1 - o.beta1, 1 - o.beta2, 0.0)
            eps *= (1 - o.beta2**step) ** 0.5 if o.eps_place == "torch" else 1
            clip = (o.clip.r, o.clip.floor_of(self.row.embedding_dim)) if o.clip else None
        elif o.kind == "ftrl":
            settings = (o.beta, o.l1, o.l2)
        factor = self.factors[step - 1]
        rates = [np.float32(size), np.float32(eps), np.float32(l2) * factor, factor]
        settings = [np.float32(s) for s in settings]
        clip = clip and [np.float32(c) for c in clip]
        dim = self.row.embedding_dim
        step_reference(RULE_NUMBERS[o.kind], row["w"], row["state"], grad, rates, settings, dim, clip, count)

    def store(self, row: dict[str, np.ndarray], key: int, step: int) -> None:
        """Round a row to the precision of its formats. The positions of values are those of a row of 32-bit words."""
        for part, number_format in enumerate(self.row.formats):
            values = row["w"] if part == 0 else row["state"][part - 1]
            for c in range(len(values)):
                noise = noise_reference(self.workflow.seed, step, key, 2 + part * self.row.num_weights + c)
                values[c] = round_reference(values[c], NUMBER_FORMATS[number_format], noise)

    def key_of(self, value: object, category: Category) -> int:
        if self.rare.shares(value, category.name):
            return int(shared_key(category.table_name))
        return key_of(value, category.name, category.table_name)

    def values_of(self, batch: list[dict[str, object]]) -> tuple[np.ndarray, np.ndarray, list[int], list[int], list]:
        """Keys of the batch in the documented order, and the bags of its multi-hot fields."""
        categories = self.workflow.data.categories
        has = self.schema.names
        multi = [
            f for f, c in enumerate(categories) if c.name in has and pa.types.is_list(self.schema.field(c.name).type)
        ]
        single = [f for f in range(len(categories)) if f not in multi]
        keys = [self.key_of(e[categories[f].name], categories[f]) for f in single for e in batch]
        bags = np.zeros((len(multi), len(batch) + 1), np.int32)
        for m, f in enumerate(multi):
            bags[m, 0] = len(keys)
            for b, example in enumerate(batch):
                values = example[categories[f].name]
                values = [None] if values is None else values
                keys += [self.key_of(v, categories[f]) for v in values]
                bags[m, b + 1] = len(keys)
        for sequence in self.workflow.data.sequences:
            for column, candidate in sequence.items.items():
                (category,) = (c for c in categories if c.name == candidate)
                starts = [len(keys)]
                for example in batch:
                    values = (example[column] or [])[-sequence.max_length :]
                    keys += [self.key_of(v, category) for v in values]
                    starts.append(len(keys))
                bags = np.concatenate([bags, np.array([starts], np.int32)])
        for f, first, last in [(f, n * len(batch), (n + 1) * len(batch)) for n, f in enumerate(single)] + [
            (f, bags[m, 0], bags[m, -1]) for m, f in enumerate(multi)
        ]:
            width = categories[f].width or self.row.embedding_dim
            self.widths |= dict.fromkeys(keys[first:last], width)
        mean = [categories[f].pooling == "mean" for f in multi]
        return np.array(keys, np.uint64), bags, single, multi, mean

    def forward(self, batch: list[dict[str, object]], create: bool) -> tuple:
        data = self.workflow.data
        keys_V, bags, single, multi, mean = self.values_of(batch)
        keys_P, inverse = unique_keys_reference(keys_V)
        inverse_V = np.array(inverse, np.int32)
        rows = [self.row_of(key, create) for key in keys_P]
        weights_PC = np.array([row["w"] for row in rows], np.float32).reshape(-1, self.row.num_weights)
        embeddings, first = pool_reference(weights_PC, inverse_V, bags, single, multi, mean, self.row.embedding_dim)
        numbers = np.zeros((len(batch), len(data.numbers)), np.float32)
        for x, column in enumerate(data.numbers):
            raw = [example[column.name] for example in batch]
            filled = np.array([column.fill if r is None or r != r else r for r in raw], np.float32)
            shifted = filled + np.float32(column.shift)
            numbers[:, x] = np.log1p(shifted) if column.log1p else shifted
        tensors = [aligned(embeddings), aligned(first if self.row.first_order else first[:, :0])]
        for tensor in tensors:
            tensor.requires_grad_(create)
        sequences = self.sequences_of(batch, weights_PC, inverse_V, bags[len(multi) :], tensors[0])
        for values in sequences.values():
            tensors += [item.requires_grad_(create) for item in values.items.values()]
        output = self.biased(
            self.model(aligned(numbers), *tensors[:2], **({"sequences": sequences} if sequences else {}))
        )
        return output, tensors, keys_P, rows, inverse_V, bags, single, multi, mean

    def sequences_of(self, batch, weights_PC, inverse_V, lists, embeddings) -> dict[str, SequenceValues]:
        """Sequences of the batch. `lists`: starts of each item list's values in `inverse_V`."""
        names, left, found = [c.name for c in self.workflow.data.categories], list(lists), {}
        for sequence in self.workflow.data.sequences:
            items, candidates = {}, {}
            for column, candidate in sequence.items.items():
                starts = left.pop(0)
                rows_QC = weights_PC[inverse_V[starts[0] : starts[-1]]]
                items[column] = aligned(rows_QC.reshape(-1, self.row.num_weights)[:, : self.row.embedding_dim])
                candidates[column] = embeddings[:, names.index(candidate)]
            numbers = {
                name: aligned([x for example in batch for x in (example[name] or [])[-sequence.max_length :]])
                for name in sequence.numbers
            }
            offsets = torch.from_numpy(starts.astype(np.int64) - int(starts[0]))
            found[sequence.name] = SequenceValues(items, offsets, numbers, candidates)
        return found

    def biased(self, output):
        if not any(self.biases):
            return output
        logits = output[0] if isinstance(output, tuple) else output
        logits = logits + (self.biases[0] if logits.ndim == 1 else torch.tensor(self.biases))
        return (logits, *output[1:]) if isinstance(output, tuple) else logits

    def train_batch(self, batch: list[dict[str, object]]) -> None:
        self.step += 1
        self.model.train()
        torch.random.default_generator.manual_seed(seed_of_step(self.workflow.seed, self.step))
        data = self.workflow.data
        output, tensors, keys_P, rows, inverse_V, bags, single, multi, mean = self.forward(batch, create=True)
        emb, first, *items = tensors
        weights = aligned([float(e[data.weight]) for e in batch]) if data.weight else None
        if data.tasks:
            weights = aligned([[has_label(data, e, n) * float(e[data.weight] if data.weight else 1)
                                for n in data.labels] for e in batch])  # fmt: skip
        labels = aligned([[float(e[n]) if has_label(data, e, n) else 0.0 for n in data.labels] for e in batch])
        if all(task.loss == "cross_entropy" for task in data.tasks):
            loss = getattr(self.model, "loss", binary_cross_entropy)(output, labels, weights)
        else:
            loss = losses_by_task(data, output, labels, weights)
        if data.tasks:
            of_labels = {task.label: task.weight for task in data.tasks}
            loss = (loss * torch.tensor([of_labels.get(name, 1.0) for name in data.labels])).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        items_QD = np.concatenate([gradient(item) for item in items]) if items else None
        groups = sources_reference(inverse_V, bags, single, multi, len(batch))
        starts = np.cumsum([0, *map(len, groups)]).astype(np.int32)
        scale = (
            bag_scale(bags, tuple(multi), tuple(mean), len(data.categories)) if any(mean) else np.empty(0, np.float32)
        )
        grads_PC = segment_sum_reference(
            gradient(emb), gradient(first) if self.row.first_order else None,
            np.array([s for group in groups for s in group]), starts, scale, self.row.num_weights, items_QD,
        )  # fmt: skip
        self.factors.append(np.float32(1))
        if self.workflow.optimizer.max_grad_norm:
            self.clip(grads_PC, rows)
        self.optimizer.step()
        self.add_to_averages()
        for key, row, grad, group in zip(keys_P, rows, grads_PC, groups, strict=True):
            count = len({self.example_of(source, bags[len(multi) :], len(batch)) for source in group})
            self.note_clip(row["w"], grad, count)
            self.move(row, grad, self.step, count)
            self.store(row, key, self.step)
            self.counts[key] = (self.step, self.counts.get(key, (0, 0))[1] + len(group))
        if self.moves_absent_rows:
            for key in self.rows.keys() - set(keys_P):
                self.move(self.rows[key], np.zeros(self.row.num_weights, np.float32), self.step)
                self.counts[key] = (self.step, self.counts[key][1])

    def example_of(self, source: int, lists: np.ndarray, num_examples: int) -> int:
        """Example of an occurrence. `lists`: starts of each item list's values."""
        num_fields = len(self.workflow.data.categories)
        if source < num_examples * num_fields:
            return source // num_fields
        at = lists[0, 0] + source - num_examples * num_fields
        (found,) = {b for starts in lists for b in range(num_examples) if starts[b] <= at < starts[b + 1]}
        return found

    def note_clip(self, weights: np.ndarray, grad: np.ndarray, count: int) -> None:
        """Record whether a row's gradient is clipped, by the definition of CowClip in float64."""
        rows, dim = self.workflow.optimizer.rows, self.row.embedding_dim
        if clip := getattr(rows, "clip", None):
            own, whole = weights[:dim].astype(np.float64), (grad + rows.l2 * weights)[:dim].astype(np.float64)
            bound = count * max(clip.r * np.linalg.norm(own), clip.floor_of(dim))
            self.clipped.append(bool(np.linalg.norm(whole) > bound))

    def clip(self, grads_PC: np.ndarray, rows: list[dict[str, np.ndarray]]) -> None:
        optimizer = self.workflow.optimizer
        weights = aligned(np.array([row["w"] for row in rows]).reshape(grads_PC.shape))
        dense = [p.grad for p in self.model.parameters() if p.grad is not None]
        full = aligned(grads_PC).add(weights, alpha=optimizer.rows.l2)
        factor = clip_factor([*dense, full], optimizer.max_grad_norm)
        for gradient in dense:
            gradient.mul_(factor)
        self.factors[-1] = np.float32(factor.item())

    def words(self, key: int) -> list[int]:
        """Words of the row's record, without the tag."""
        row = self.rows[key]
        num_state = self.row.wide.last_step_at - 2 - self.row.num_weights
        floats = np.concatenate([row["w"], row["state"].reshape(-1)[:num_state]]).astype(np.float32)
        return [key & 0xFFFFFFFF, key >> 32, *floats.view(np.uint32).tolist(), *self.counts[key]]

    def fingerprint(self) -> str:
        total = sum(row_hash_reference(self.words(key)) for key in self.rows) % (1 << 128)
        averages = [(f"{name}.average", average) for name, average in self.averages.items()]
        return fingerprint(total, dense_state(self.model, self.optimizer) + averages)
