"""Wide rows in the layout of the new run, and checks shared by its sources."""

from __future__ import annotations

import numpy as np

from pipeline.records import U32, U64
from pipeline.storage.layout import KEY_WORDS, RowLayout, row_keys


def empty_rows(layout: RowLayout, keys_U: U64) -> U32:
    """[U, X] wide rows with these keys; all other words are 0."""
    rows_UX = np.zeros((len(keys_U), layout.wide.num_words), np.uint32)
    rows_UX[:, :KEY_WORDS] = np.ascontiguousarray(keys_U).view(np.uint32).reshape(-1, KEY_WORDS)
    return rows_UX


def check_width(name: str, found: int, row: RowLayout) -> None:
    """Raises ValueError if the width `found` of the vectors differs from that of the rows."""
    if found != row.embedding_dim:
        raise ValueError(
            f"init_from: {name} has vectors of {found} numbers, and model.embedding_dim is {row.embedding_dim}; set "
            f"model.embedding_dim to {found}, or name another source"
        )


def is_text(type_name: str) -> bool:
    """True if the Arrow type with this name is text or lists of text. Text and integers never have the same keys."""
    return any(word in type_name for word in ("string", "binary", "uuid"))


def convert(rows_UX: U32, there: RowLayout, here: RowLayout, with_state: bool) -> U32:
    """Convert rows [U, X] from another wide layout to that of the run: common parts are copied, others are 0.
    `with_state`: also copy the optimizer state; both layouts must then have the same optimizer."""
    out_UX, both = empty_rows(here, row_keys(rows_UX)), here.first_order and there.first_order
    for part_there, part_here in zip(there.wide.parts, here.wide.parts, strict=False):
        if part_here.name != "weights" and not with_state:
            break
        # The first values of a part belong to the embedding: one per weight, or a single one.
        embedding = part_here.size - here.first_order
        at, to = part_there.wide_at, part_here.wide_at
        out_UX[:, to : to + embedding] = rows_UX[:, at : at + embedding]
        if both:
            out_UX[:, to + embedding] = rows_UX[:, at + embedding]
    return out_UX
