"""The page table of a batch, as the native half takes it."""

from __future__ import annotations

from typing import Any

from ._tensors import Integers, int32s


def page_table(
    indptr: Integers | None,
    indices: Integers | None,
    last_page_len: Integers | None,
    block_tables: Integers | None,
    seq_lens: Integers | None,
) -> tuple[Any, Any]:
    """Addresses of compressed rows or of block tables, and what has to live until they are read.

    Raises:
        TypeError: neither of the two, or parts of both.
        ValueError: arrays that do not fit each other.
    """
    rows = (indptr, indices, last_page_len)
    given = [part is not None for part in rows]
    tables = [part is not None for part in (block_tables, seq_lens)]
    if all(given) and not any(tables):
        held = [int32s(name, part) for name, part in zip(("indptr", "indices", "last_page_len"), rows)]
        table: Any = tuple(part.array for part in held)
    elif all(tables) and not any(given):
        entries, lens = int32s("block_tables", block_tables, axes=2), int32s("seq_lens", seq_lens)
        if entries.shape[0] != lens.length:
            raise ValueError(
                f"`block_tables` has {entries.shape[0]} rows, `seq_lens` {lens.length} numbers: one a request each"
            )
        held = [entries, lens]
        table = ((entries.address, entries.stride), entries.shape[1], lens.array)
    else:
        raise TypeError("a plan takes `indptr`, `indices` and `last_page_len`, or `block_tables` and `seq_lens`")
    return table, held
