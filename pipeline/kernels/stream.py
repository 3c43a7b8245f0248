"""Rows written past the caches. A hint: it changes no result.

A row that is moved whole is not read again soon. An ordinary store first fetches the line that it will overwrite, and
then puts something else out of the cache; a streaming one does neither. Measured on 300,000 random rows of 224 bytes,
one thread: gathered in 4.3 ms instead of 5.8, scattered in 2.7 instead of 5.3 (copied in order: 3.4).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pipeline.kernels import cpu
from pipeline.records import U32

VECTOR_WORDS = 8
VECTOR_BYTES = 4 * VECTOR_WORDS


@intrinsic
def _stream_vector(typingctx: Any, source: Any, target: Any) -> Any:
    """Copy VECTOR_BYTES from any address to a multiple of VECTOR_BYTES."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.VectorType(ir.IntType(32), VECTOR_WORDS).as_pointer()
        value = builder.load(builder.inttoptr(args[0], pointer))
        value.align = 4
        store = builder.store(value, builder.inttoptr(args[1], pointer))
        store.align = VECTOR_BYTES
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def finish_streams(typingctx: Any) -> Any:
    """Whoever hears of what was streamed, by whatever means, finds it in memory: streaming stores keep no order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@cpu
def may_stream(rows_UW: U32) -> bool:
    """Whether all rows are made of whole vectors, where vectors may stand."""
    return rows_UW.shape[1] % VECTOR_WORDS == 0 and rows_UW.ctypes.data % VECTOR_BYTES == 0


@cpu
def stream_row(source: int, target: int, row_bytes: int) -> None:
    """Copy a row between addresses; the row at `target` is of an array that `may_stream`."""
    for at in range(0, row_bytes, VECTOR_BYTES):
        _stream_vector(source + at, target + at)
