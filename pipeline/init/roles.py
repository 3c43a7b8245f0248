"""Roles of columns: label, number, category, time, or none, with reasons, and warnings about unsuitable columns; and
the list columns that a model can read value by value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.init.choice import (
    Choice,
    as_option,
    found_label,
    given_role,
    is_binary,
    label_of_rows,
    label_options,
    named_label,
    of_role,
    split_role,
)
from pipeline.init.columns import (
    INDEXES,
    OUTCOME_WORDS,
    THING_WORDS,
    TIME_WORDS,
    WEIGHT_WORDS,
    Column,
    Look,
    decoded,
    role_by_name,
    words_of,
)
from pipeline.init.division import Divided, Division
from pipeline.init.measures import are_nothing, auc_error, codings, held_out_rates, rank_auc
from pipeline.init.values import F8, WholeNumbers
from pipeline.prepare.draft import DraftedCategory, DraftedSequence

VERY_FEW = 8
"""Maximum number of distinct whole numbers for which a column is a category even if its name suggests amounts. With few
values, such as 0 and 1 or the levels of a scale, an embedding per value is at least as expressive as the number."""
HASHED = 1 << 31
"""Whole numbers from this value on are hashes or identifiers."""
LARGEST = float(np.finfo(np.float32).max)
"""Largest value allowed in a number column."""
ENOUGH, SURE = 20, 200
"""Minimum number of rows per label value for judging a column, and for leaving it out by its AUC."""
SURE_AUC, SUSPECT_AUC, TWIN_AUC = 0.98, 0.9, 0.6
"""AUC of a single column, on rows not used for its rates: it is left out if the 95 % interval is above the first, and
the user is warned from the second, or the third for columns of 0 and 1, which may be labels too, and for columns named
like an outcome."""
UNSEEN_SHARE = 0.05
"""Share of held-out rows with a value seen in training, up to which the user is warned about a category."""
SHARED_VALUES = 0.8
"""Minimum share of list values that occur in a column of single values, for the two to share a table."""
ATTRIBUTE = 0.95
"""Minimum share of lists that contain their own row's candidate value, for the lists to be attributes of the candidate.
"""


def choose_roles(look: Look, labels: Sequence[str], roles: Sequence[str] = ()) -> list[Choice]:
    """Choose the role of each column, in order. `labels`: label columns, as COLUMN or as COLUMN=VALUE if VALUE means 1
    and the other value 0; if empty, the label is guessed. `roles`: roles given by the user, as COLUMN=ROLE. Raises
    ValueError if there is no label or no category."""
    given = dict(split_role(text, look) for text in roles)
    labels = [*labels, *(name for name, role in given.items() if role == "label")]
    chosen = [named_label(label, look) for label in labels] or [found_label(look, given)]
    made = {choice.column.name: choice for choice in chosen}
    labels_N = [label_of_rows(look, choice) for choice in chosen]
    whole = WholeNumbers(look, labels_N)
    for column in look.columns:
        if column.name in given and column.name not in made:
            is_whole = column.kind == "numbers" and whole.are_whole(column.name)
            made[column.name] = given_role(column, given[column.name], is_whole)
    choices = [
        made.get(column.name) or _judged(_unless_damaged(_choice(column, look, whole)), look, chosen, labels_N)
        for column in look.columns
    ]
    return _with_category(choices)


def _with_category(choices: list[Choice]) -> list[Choice]:
    """Return the choices. Raises ValueError if none is a category."""
    if not any(choice.role == "category" for choice in choices):
        names = ", ".join(choice.column.name for choice in choices)
        raise ValueError(
            f"none of the columns {names} is a category, and a model needs one: integers or texts that name things, "
            "such as users, in several rows each; add such a column to the files, or name one by --as COLUMN=category"
            + "".join(f"; {choice.warning}" for choice in choices if choice.warning)
        )
    return choices


def shared_table(choice: Choice, choices: Sequence[Choice], look: Look) -> str | None:
    """Name of the single-value column whose table a list column shares, such as item_id for hist_items: the names share
    a word, and the column contains the lists' values. None if there is no such column."""
    column = choice.column
    if not (column.kind or "").startswith("lists"):
        return None
    inside = pc.unique(pc.list_flatten(look.sample.column(column.name)))
    for other in choices:
        name = other.column.name
        if other.role != "category" or f"lists of {other.column.kind}" != column.kind:
            continue
        if _words(name) & _words(column.name) and len(inside):
            single = pc.unique(look.sample.column(name)).cast(inside.type, safe=False)
            if pc.mean(pc.is_in(inside, single).cast(pa.int8())).as_py() >= SHARED_VALUES:
                return name
    return None


def categories_of(choices: Sequence[Choice], look: Look) -> list[DraftedCategory]:
    """Categories of the workflow."""
    return [
        DraftedCategory(c.column.name, shared_table(c, choices, look) or "", (c.column.kind or "").startswith("lists"))
        for c in of_role(choices, "category")
    ]


def _words(name: str) -> set[str]:
    """Words of a column's name, in the singular, that describe its values."""
    words = re.split(r"[^a-z]+", words_of(name).replace("categories", "category"))
    return {word.removesuffix("s") for word in words} - {"", "id", "hist", "history", "list", "seq"}


def sequences_of(choices: Sequence[Choice], look: Look) -> list[DraftedSequence]:
    """Sequences of the list columns with values of a category, except columns with a role given by the user. Columns
    whose lists have equal lengths in each row form one sequence. Columns with a null within a list are excluded, since
    training rejects them in a sequence. Columns whose lists contain their own row's value are excluded as attributes of
    the candidate."""
    of_lengths: dict[bytes, dict[str, str]] = {}
    for choice in of_role(choices, "category"):
        candidate = None if choice.given else shared_table(choice, choices, look)
        values = look.sample.column(choice.column.name)
        if not candidate or any(pc.list_flatten(chunk).null_count for chunk in values.chunks):
            continue
        if share_with_own_value(values, look.sample.column(candidate)) < ATTRIBUTE:
            lengths_N = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
            of_lengths.setdefault(lengths_N.tobytes(), {})[choice.column.name] = candidate
    return [
        DraftedSequence(f"history_{number}" if number > 1 else "history", items)
        for number, items in enumerate(of_lengths.values(), 1)
    ]


def share_with_own_value(lists: pa.ChunkedArray, own: pa.ChunkedArray) -> float:
    """Share of the non-empty lists that contain their row's value of another column."""
    row_V = pc.list_parent_indices(lists)
    holds_V = pc.equal(pc.list_flatten(lists), own.take(row_V).cast(lists.type.value_type, safe=False))
    return len(pc.unique(row_V.filter(holds_V))) / max(1, len(pc.unique(row_V)))


def note_of(sequence: DraftedSequence, choices: Sequence[Choice]) -> str:
    """Description of a sequence, with the options for pooling its lists instead."""
    options = [as_option(choice.column, "list") for choice in choices if choice.column.name in sequence.items]
    return (
        f"a model can read {', '.join(sequence.items)} value by value, and compare the values with "
        f"{', '.join(sequence.items.values())}; for their mean alone, {' '.join(options)}"
    )


def _choice(column: Column, look: Look, whole: WholeNumbers) -> Choice:
    name, kind, rows = column.name, column.kind, column.num_rows
    known = rows - column.num_nulls
    unique = column.num_different == known and whole.are_unique(column.num_different, known)
    if not name:
        return Choice(column, "skip", "it has no name")
    if column.num_different == 0:
        return Choice(column, "skip", "all values are null", f"{name} is empty")
    if kind == "time":
        return Choice(column, "time", str(column.type))
    if kind is None:
        why = "several types" if column.note else f"no workflow reads {column.type}"
        return Choice(column, "skip", why, column.note)
    if kind == "text" and (stem := _variant_of(column, look)) is not None:
        said = f"{stem} is a VARIANT, whose bytes no workflow reads: write the fields that matter as columns"
        return Choice(column, "skip", "a part of a VARIANT", said if name.endswith(".value") else "")
    is_timed = bool(TIME_WORDS.search(words := words_of(name)))
    if kind == "lists of integers" and (is_timed or whole.are_times(name, named=False)):
        return Choice(column, "skip", "lists of times")
    if kind.startswith("lists"):
        return Choice(column, "category", f"{kind}, read one by one or by their mean")
    if column.num_different == 1 and not column.num_nulls:
        return Choice(column, "skip", "one value", f"{name} is constant: nothing can be learned from it")
    if kind == "text":
        if len(forms := whole.forms(name)) == 1:
            return Choice(column, "time", f"text that says times ({forms[0]})")
        return _unless_unique(column, unique, "text")
    if pa.types.is_boolean(column.type):
        return Choice(column, "number", "true or false")
    if WEIGHT_WORDS.search(words):
        said = f"{name} looks like a weight of the rows: if it is one, {as_option(column, 'weight')}"
        return Choice(column, "skip", "its name says it is a weight", said)
    by_name = role_by_name(name)
    if INDEXES.fullmatch(name):
        return _row_number(column, "its name says it is an index of pandas")
    if whole.are_times(name, is_timed):
        return Choice(column, "time", "numbers that are days or hours, or grow like a clock's")
    if kind == "numbers" and not (whole.are_whole(name) and (by_name == "category" or column.num_nulls)):
        return _number(column, "floats")
    if whole.are_row_numbers(name) and not THING_WORDS.search(words):
        return _row_number(column, "it rises from row to row in each file")
    if by_name == "category":
        return _unless_unique(column, unique and not words.startswith(("user", "item")), "its name says so")
    if column.num_different <= VERY_FEW:
        return Choice(column, "category", f"{column.num_different} different whole numbers")
    if by_name == "number":
        return _number(column, "its name says so")
    if column.maximum >= HASHED or column.minimum < -HASHED:
        return _unless_unique(column, unique, "large whole numbers, as of a hash")
    role, why, either = whole.role(name)
    if role == "number":
        return replace(_number(column, why), either=either)
    return replace(_unless_unique(column, role == "skip" and unique, why), either=either)


def fit_to_splits(choices: Sequence[Choice], look: Look, divided: Divided) -> list[Choice]:
    """Skip columns that are missing from all files of a split, and warn about categories whose values in held-out files
    do not occur in training files, such as a day number. Raises ValueError if no category is left."""
    held_N = divided.held_N
    if divided.files:
        choices = [_unless_absent(choice, look, divided.files) for choice in choices]
        held_out = [number for number, path in enumerate(look.paths) if path not in {*divided.files["train"]}]
        held_N = np.isin(look.file_of, held_out)
    if held_N is not None and held_N.any() and not held_N.all():
        choices = [_unless_unseen(choice, look, held_N) for choice in choices]
    return _with_category([*choices])


def _unless_absent(choice: Choice, look: Look, division: Division) -> Choice:
    name, lacking = choice.column.name, look.lacking.get(choice.column.name, frozenset())
    for split, paths in division.items():
        if lacking.issuperset(paths):
            said = f"{name} is in no file of {split}, so it is left out; to use it, add it to one of them"
            return Choice(choice.column, "skip", f"in no file of {split}", said)
    return choice


def _unless_unseen(choice: Choice, look: Look, held_N: NDArray[np.bool_]) -> Choice:
    values = decoded(look.sample.column(choice.column.name))
    if choice.role != "category" or choice.given or choice.column.kind not in ("integers", "text", "numbers"):
        return choice
    known = pc.unique(values.filter(pa.array(~held_N)))
    held = values.filter(pa.array(held_N))
    if pc.mean(pc.is_in(held, known).cast(pa.int8())).as_py() > UNSEEN_SHARE:
        return choice
    said = (
        f"{choice.column.name} has different values in the held-out rows: what is learned from it is useless there; "
        f"to leave it out, {as_option(choice.column, 'nothing')}"
    )
    return replace(choice, warning="; ".join(filter(None, (choice.warning, said))))


def _unless_unique(column: Column, unique: bool, why: str) -> Choice:
    if not unique:
        return Choice(column, "category", why)
    said = (
        f"{column.name} is different in every row: nothing can be learned from a key that never repeats; to "
        f"use it anyway, {as_option(column, 'category')}"
    )
    return Choice(column, "skip", "unique per row", said)


def _row_number(column: Column, why: str) -> Choice:
    said = f"{column.name} is left out as a number of the row, of which nothing can be learned: {why}; to use it, "
    said += f"{as_option(column, 'category')}, or if it is a time, {as_option(column, 'time')}"
    return Choice(column, "skip", "a number of the row", said)


def _unless_damaged(choice: Choice) -> Choice:
    """Leave out a category of floats that are beyond the whole numbers that their type holds exactly."""
    column = choice.column
    if choice.role != "category" or column.types or not pa.types.is_floating(column.type):
        return choice
    exact = 2.0 ** (np.finfo(column.type.to_pandas_dtype()).nmant + 1)
    if not (beyond := [end for end in (column.minimum, column.maximum) if abs(end) > exact]):
        return choice
    said = f"{column.name} is left out: ids such as {beyond[0]:.0f} are beyond {exact:,.0f}, from which on"
    said += f" {column.type} merges different ids; write them as integers or text"
    return Choice(column, "skip", f"ids beyond what {column.type} holds exactly", said)


def _number(column: Column, why: str) -> Choice:
    if beyond := [end for end in (column.minimum, column.maximum) if end is not None and abs(end) > LARGEST]:
        said = (
            f"{column.name}: {beyond[0]:.4g} is beyond the range of float32, 3.4e38: scale the numbers in the files, "
        )
        said += f"or if only a few are that large, {as_option(column, 'number')} --skip-bad 0.01 leaves out their rows"
        return Choice(column, "skip", "too large for float32", said)
    said = f"{column.name} has infinite values, which are refused: --skip-bad 0.01 leaves out their rows"
    return Choice(column, "number", why, said if column.infinite else "")


def _variant_of(column: Column, look: Look) -> str | None:
    """Name of the VARIANT of which Parquet stores a column of bytes; None for other columns."""
    stem = column.name.rpartition(".")[0]
    pair = [one for one in look.columns if one.name in (f"{stem}.metadata", f"{stem}.value")]
    return stem if column in pair and [pa.types.is_binary(one.type) for one in pair] == [True, True] else None


def _judged(choice: Choice, look: Look, labels: Sequence[Choice], labels_N: Sequence[F8]) -> Choice:
    """Leave out a feature or time that alone predicts a label, as what is known only after it does, or if that is not
    sure, add a warning."""
    column, found, sure = choice.column, [0.0], False
    if choice.role not in ("number", "category", "time"):
        return choice
    values = decoded(look.sample.column(column.name))
    # The stream of seed 0 may have made the labels of an example log.
    half_N = np.random.default_rng(0x68616C66).random(len(values)) < 0.5
    by_name = bool(OUTCOME_WORDS.search(words_of(column.name)))
    for label_N in labels_N:
        positive_N = label_N > 0
        if (num_rows := min(positive_N.sum(), (~positive_N).sum())) < ENOUGH:
            continue
        are_positive_N = are_nothing(values) == positive_N
        sure |= bool(are_positive_N.all() or not are_positive_N.any())
        for codes_N in codings(values, choice.role == "number"):
            rates_N = held_out_rates(codes_N, label_N.astype(np.float32), half_N)
            found.append(rank_auc(rates_N, positive_N))
            sure |= num_rows >= SURE and found[-1] - 1.96 * auc_error(rates_N, positive_N) > SURE_AUC
    alone = f"it alone predicts the label (AUC {max(found):.3f} on held-out rows)"
    if sure:
        role = "list" if (column.kind or "").startswith("lists") else choice.role
        said = f"{column.name} is left out: {alone}, as what is known after it does; {as_option(column, role)} keeps it"
        return Choice(column, "skip", "it alone predicts the label", said, after_label=by_name)
    if max(found) < (TWIN_AUC if by_name or is_binary(column) else SUSPECT_AUC):
        return choice
    so_far = "seems, by its name, to be known only after the label, and" if by_name else "is kept, but"
    said = f"{column.name} {so_far} {alone}: if it is known only after the label, {as_option(column, 'nothing')}"
    said += f"; if it is one more label, {label_options([*labels, choice])}" if is_binary(column) else ""
    said = "; ".join(filter(None, (said, choice.warning)))
    return replace(choice, warning=said, after_label=by_name)
