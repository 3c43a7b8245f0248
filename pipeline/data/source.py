"""A workflow's Parquet files as one sequence of examples per split and epoch, read block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeline.data.batches import BatchWriter, widths_of
from pipeline.data.buffer import ReadBuffer
from pipeline.data.files import SchemaCheck, columns_of, derived_of
from pipeline.data.groups import GroupReader, RowGroup
from pipeline.data.identity import Begun, FileIdentity, SplitIdentity
from pipeline.data.order import PassOrder
from pipeline.data.outside import BadValues, Outside
from pipeline.data.side_files import side_digests, with_copies
from pipeline.data.split_files import check_signs, chosen_files, files_of_splits, list_split, with_changes
from pipeline.data.window import Window
from pipeline.files.description import Description
from pipeline.files.find import DataFile
from pipeline.machine.threads import Threads
from pipeline.records import I64, Block, Examples, FieldLayout, Rank
from pipeline.settings import SPLITS
from pipeline.spans.calendar import Calendar
from pipeline.spans.changes import changes_of
from pipeline.spans.passes import ARRIVAL, SPAN, Leg
from pipeline.workflow import Data, Metrics

FILE_ORDER_WINDOW = 1 << 16
"""Number of examples decoded together if nothing is shuffled."""
LIST_MARGIN = 1.1
"""Factor on the average list length in predictions of bytes, since a block's lists may be longer."""
ALL = Rank()
NO_MORE = Metrics()
"""Metrics without columns."""
NOTHING_BEGUN = Begun()
NO_SPANS = SplitIdentity(types={}, files=[])


@dataclass(frozen=True, slots=True)
class Scoring:
    """Input of a scoring run, instead of the workflow's splits: these files, in order, form its test split. Their
    labels are not read."""

    files: tuple[DataFile, ...]
    kinds: Mapping[str, str]
    """Kind of each column of keys in the training data (see `SchemaCheck`)."""
    bad_values: BadValues = "clip"


class Source:
    """Reader of any block of any epoch; sequential access is cheapest, since the last window and row group are kept.

    Only one thread may use it at a time. It keeps at most `groups.MAX_OPEN` files open until `close`.
    """

    layout: FieldLayout
    num_examples: dict[str, int]

    def __init__(
        self, data: Data, seed: int, num_threads: int = 1, metrics: Metrics = NO_MORE,
        scoring: Scoring | None = None, keys_only: bool = False, begun: Begun | None = None,
    ) -> None:  # fmt: skip
        """Read every file's metadata. `metrics`: names additional columns to read. `keys_only`: read only categorical
        columns, so that blocks have no labels, weights or numbers. `begun`: see `files_of_splits`. If the training data
        has spans, the calendar is made from the files that are not in `begun`.

        Raises ValueError if a pattern or a column does not fit the files.
        """
        self._threads, begun = Threads(num_threads, "read"), begun or NOTHING_BEGUN
        self.sides, named = begun.sides, data
        data = with_copies(data, self.sides.newest, self.sides.folder) if self.sides.folder else data
        canonical = all(file.canonical for file in scoring.files) if scoring else begun.canonical
        described = Description(*(split.described for split in begun.splits.values()), canonical=canonical)
        # Refuses features whose files cannot be read; the files are read after their checksums are taken.
        derived_of(data, described)
        self.side_files = {} if scoring else self.sides.newest or side_digests(data)
        """Checksum of each file that features read."""
        columns = [c for c in columns_of(data, metrics.group, described) if c.has_rows or not keys_only]
        read = [c for c in columns if not (scoring and c.setting == "data.labels")]
        check = SchemaCheck(read, scoring.kinds if scoring else None, described)
        self._groups: dict[str, list[RowGroup]] = {}
        self.identity: dict[str, SplitIdentity] = {}
        """Identity of each split."""
        files: dict[DataFile, FileIdentity] = {}
        empty: dict[DataFile, frozenset[str]] = {}
        begun = with_changes(data, begun, described, check)
        found = None if scoring else files_of_splits(data, begun, described)
        of_splits = found.of if found else {"test": list(scoring.files) if scoring else []}
        self.set_aside: list[str] = []
        """A line for each span that this session is the first to set aside."""
        for split in SPLITS:
            was = begun.splits.get(split, NO_SPANS) if found and split == "train" and data.spans_by else None
            listed = list_split(of_splits.get(split, ()), check, data, was, begun, found.arrivals if found else None)
            if found and was:
                listed, self.set_aside = chosen_files(listed, begun, found, data)
                listed = replace(listed, identity=listed.identity.model_copy(update={"given": found.given}))
            check.end_split("the files to score" if scoring else f"data.{split}")
            self._groups[split] = listed.groups
            self.identity[split] = listed.identity.model_copy(update={"canonical": canonical or None})
            files |= listed.files
            empty |= listed.empty
            check.notes += listed.notes
        check.end()
        self.identity["train"] = self.identity["train"].model_copy(update={"columns": described.types})
        check_signs(read, data, files)
        self.notes = tuple(check.notes)
        """Remarks on the files, one line each."""
        lists = {column.name for column in read if column.is_multi(check.kinds)}
        for split, groups in self._groups.items():
            self._groups[split] = [group.with_empty(len(lists & empty[group.file])) for group in groups]
        self.num_examples = {split: sum(g.num_rows for g in self._groups[split]) for split in SPLITS}
        if self.calendar:
            # Without the rows that are left out.
            self.num_examples["train"] = sum(self.calendar.num_rows)
        if self.num_examples["train"] == 0 and not scoring:
            why = "; ".join([f"no file of {', '.join(data.train)} has rows; name files that have", *self.set_aside])
            raise ValueError(f"data.train: {why}")
        self._passes = PassOrder(self._groups, self.identity, seed, data.shuffle_window)
        self._columns, self.layout = columns, layout_of(data, check.kinds)
        self._widths = widths_of(columns, self.layout)
        self._window_examples = min(data.shuffle_window or FILE_ORDER_WINDOW, self._passes.most_rows)
        self._reader = GroupReader(check, files)
        self._window = Window(columns, check.kinds, self._window_examples, self._threads)
        self._outside = Outside("refuse" if scoring.bad_values == "refuse" else "clip") if scoring else None
        self._in_window: tuple[Leg, int] | None = None
        self._in_order = False
        """True if the window is already shuffled."""
        self._writer = BatchWriter(self._widths)
        self._with_sides = lambda sides: Source(
            named, seed, num_threads, metrics, keys_only=keys_only, begun=replace(self.as_begun, sides=sides)
        )
        self._former: Source | None = None

    @property
    def as_begun(self) -> Begun:
        """The data of this source, for other readers of the same run."""
        return Begun(self.identity, sides=replace(self.sides, newest=self.side_files))

    def _former_of(self, block: Block) -> Source | None:
        """Source with former side files, if the block's span began with these; None: this one."""
        digests = self.sides.used_by(block, self.side_files)
        if self._former and self._former.side_files != digests:
            self._former.close()
            self._former = None
        if self._former is None and digests != self.side_files:
            self._former = self._with_sides(replace(self.sides, newest=digests, before=()))
        return self._former

    @property
    def calendar(self) -> Calendar | None:
        """The spans of the training data; None if it has none."""
        return self.identity["train"].calendar

    def read(self, block: Block, buffer: ReadBuffer, rank: Rank = ALL) -> Examples:
        """Fill the buffer with the block's examples, or with a worker's part of each batch. They stay valid until the
        buffer is reused.

        Raises BufferTooSmall if they do not fit, and ValueError, with file, row group and column, if the data is
        invalid or damaged.
        """
        if (former := self._former_of(block)) is not None:
            return former.read(block, buffer, rank)
        examples = buffer.begin(rank.part_of(block), self._widths)
        examples.batch_starts[0], leg = 0, Leg.of(block)
        for batch in range(block.num_batches):
            self._writer.begin(examples, batch)
            first, batch_end = block.batch_bounds(batch)
            part_begin, part_end = (first + at for at in rank.bounds(batch_end - first))
            moved = examples.block.batch_bounds(batch)[0] - part_begin
            for at, window, begin, end in self._pieces(block, part_begin, part_end):
                self._load(leg, window)
                self._writer.add(self._window, begin, end, at + moved)
            self._writer.end()
        return self._writer.finish()

    def places(self, block: Block) -> Iterator[tuple[Window, I64]]:
        """Windows with examples of the block, decoded but not shuffled, and the indices [N] of its examples in each,
        ascending: for readers that do not depend on the order of examples. A window is valid until the next one."""
        if (former := self._former_of(block)) is not None:
            yield from former.places(block)
            return
        leg = Leg.of(block)
        for _, number, begin, end in self._pieces(block, 0, block.num_examples):
            self._decode(leg, number)
            window = self._window
            if end - begin == window.count:
                yield window, np.arange(window.count, dtype=np.int64)
                continue
            if len(window.order) == 0:
                window.order = self._passes.places(leg, number, window.count)
            yield window, np.sort(window.order[begin:end])

    def block_bytes(self, num_examples: int, num_batches: int = 1) -> int:
        """Predicted bytes of a block in its ReadBuffer; exact except for lists, which get a margin."""
        sizes = [len(part) for part in np.array_split(np.empty(num_examples, np.int8), num_batches)]
        values = self._widths.num_single * num_examples + self._list_values(num_examples)
        return self._widths.array_bytes(sizes) + 8 * values

    def window_bytes(self, batch_size: int = 0) -> int:
        """Predicted bytes of the window, the largest row group, and the lists of the batch being written."""
        w, size = self._widths, self._window_examples
        floats = 4 * (w.num_labels + w.weighted + w.num_numbers)
        # The window also has a spare row per bank (see Bank), the order, and the offsets of each list field.
        spare = 4 + 8 * self._threads.num_threads
        num_lists = w.num_bags + w.num_list_numbers
        window = size * (floats + spare + 8 * w.num_single + 8 + 8 * num_lists + 16 * w.grouped)
        lists = 8 * self._list_values(size) + 8 * self._list_values(batch_size) + 8 * num_lists * batch_size
        kept = max((g.read_bytes for groups in self._groups.values() for g in groups), default=0)
        return window + lists + kept

    def close(self) -> None:
        if self._former:
            self._former.close()
        self._threads.close()
        self._reader.close()

    def _list_values(self, num_examples: int) -> int:
        groups = [g for groups in self._groups.values() for g in groups]
        return int(LIST_MARGIN * num_examples * max((g.num_list_values / g.num_rows for g in groups), default=0))

    def _pieces(self, block: Block, first: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Cut the block's examples `first` to `stop` at window bounds: position in the block, window, begin, end."""
        size, base = self._window_examples, block.first_example
        while first < stop:
            window, begin = divmod(base + first, size)
            end = min(size, begin + stop - first)
            yield first, window, begin, end
            first += end - begin

    def _load(self, leg: Leg, number: int) -> None:
        """Load window `number` of a pass in its shuffled order, unless already loaded."""
        if self._in_window == (leg, number) and self._in_order:
            return
        self._decode(leg, number)
        self._window.shuffle(self._passes.places(leg, number, self._window.count))
        self._in_order = True

    def _decode(self, leg: Leg, number: int) -> None:
        """Load window `number` of a pass in file order, unless already loaded that way."""
        if self._in_window == (leg, number) and not self._in_order:
            return
        self._in_window, self._in_order = None, False
        self._window.clear()
        begin = number * self._window_examples
        end = min(begin + self._window_examples, self._passes.num_rows(leg))
        for group, first, stop in self._passes.slices(leg, begin, end):
            outside = Outside("refuse") if leg.split == ARRIVAL else self._outside
            self._window.append(str(group), self._reader.read(group), first, stop, outside)
        self._in_window = leg, number


def changes_in(source: Source, span: int) -> str:
    """Sentences on what changed in a span against the two before it (see `pipeline.spans.changes`)."""
    passes, columns = source._passes, [column.name for column in source._columns]
    rows = [
        [(group.file, group.index, range(begin, end)) for group, begin, end in passes.slices(leg, 0, size)]
        for leg in (Leg(SPAN, 0, n) for n in range(span, max(-1, span - 3), -1))
        if (size := passes.num_rows(leg))
    ]
    return changes_of(columns[0], columns, rows)


def layout_of(data: Data, kinds: Mapping[str, str]) -> FieldLayout:
    """Layout of the categorical fields and sequences; `kinds`: kind of each column of keys (see `SchemaCheck`). Raises
    ValueError if an item list and its candidate have different kinds of values."""
    multi = [kinds[category.name].startswith("lists") for category in data.categories]
    names = [category.name for category in data.categories]
    candidates = [(column, of) for sequence in data.sequences for column, of in sequence.items.items()]
    for column, of in candidates:
        if kinds[column] != (expected := f"lists of {kinds[of]}"):
            said = f"holds {kinds[column]}, and its candidate {of!r} holds {kinds[of]}"
            way = (
                "name a category of single values"
                if "lists" in kinds[of]
                else f"expected {expected}: convert one of them"
            )
            raise ValueError(f"data.sequences: column {column!r} {said}; {way}")
    return FieldLayout(
        candidates_L=tuple(names.index(of) for _, of in candidates),
        single_S=tuple(f for f, m in enumerate(multi) if not m),
        multi_M=tuple(f for f, m in enumerate(multi) if m),
        mean_M=tuple(c.pooling == "mean" for c, m in zip(data.categories, multi, strict=True) if m),
    )
