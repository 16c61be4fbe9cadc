"""The extension module: addresses and strides that the package has checked."""

from collections.abc import Sequence

__version__: str

class CudaError(RuntimeError):
    """A GPU, its driver or the compiler of its kernels is missing or refused something."""

_Array = tuple[int, int]
# Compressed rows; or address and stride of rows, their columns, and lengths; or also which rows are those of the batch.
_Table = tuple[_Array, _Array, _Array] | tuple[_Array, int, _Array] | tuple[_Array, int, _Array, _Array]
_Rows = tuple[int, int, int]

# Query, output, addresses of K and V, pages, their strides, LSE, sinks, scales, stream.
_Layer = tuple[
    _Rows,
    _Rows,
    int,
    int,
    int,
    tuple[int, int, int],
    int | None,
    int | None,
    tuple[int, int, int] | None,
    int,
]

def compiled_kernels(path: str) -> tuple[tuple[int, int], list[tuple[str, int]]]: ...

class Attention:
    def __new__(
        cls,
        heads: tuple[int, int, int],
        page_size: int,
        dtype: str,
        scale: float | None,
        window: int | None,
        softcap: float | None,
        threads: int | None,
        selector: str | None,
        cubins: str | None,
        invariant: bool,
        fetch_nvrtc: bool,
        device: int | None,
    ) -> Attention: ...
    def prepare(self) -> None: ...
    def plan(
        self,
        table: _Table,
        query_lens: Sequence[int] | None,
    ) -> Plan: ...
    def graph_plan(
        self,
        table: _Table | None,
        rows: int,
        pages: int,
        lengths: int | None,
        stream: int,
    ) -> GraphPlan: ...
    def append(
        self,
        keys: _Rows,
        values: _Rows,
        tokens: int,
        slots: int,
        caches: tuple[int, int],
        pages: int,
        kv_strides: tuple[int, int, int],
        scales: tuple[int, int, int] | None,
        rotary: tuple[int, int, int, bool, int, bool] | None,
        stream: int,
    ) -> None: ...
    def live_plan(self) -> LivePlan: ...

class Plan:
    @property
    def batch(self) -> int: ...
    def run(self, layer: _Layer) -> None: ...
    def set_lengths(self, seq_lens: Sequence[int]) -> None: ...
    def upload(self, stream: int) -> None: ...

class GraphPlan:
    def update(self, table: _Table, stream: int) -> bool: ...
    def update_rows(
        self,
        entries: int,
        stride: int,
        columns: int,
        table_rows: int,
        seq_lens: int,
        batch: int,
        order: int,
        writes: int,
        stream: int,
        /,
    ) -> bool: ...
    def set_lengths(self, seq_lens: Sequence[int], stream: int) -> None: ...
    def run(self, layer: _Layer) -> None: ...

class LivePlan:
    def add(self, request: int, pages: Sequence[int], tokens: int) -> None: ...
    def remove(self, request: int) -> None: ...
    def append(self, request: int, new_pages: Sequence[int], tokens: int) -> None: ...
    def truncate(self, request: int, pages_kept: int, tokens: int) -> None: ...
    def rename(self, old: int, new: int) -> None: ...
    def grow(self, request: int, tokens: int) -> None: ...
    def grow_all(self, tokens: Sequence[int]) -> None: ...
    def update(self) -> int: ...
    def run(self, layer: _Layer, batch: int) -> None: ...
    def upload(self, stream: int) -> None: ...

def merge_states(
    states: Sequence[tuple[int, int]],
    rows: int,
    head_dim: int,
    dtype: str,
    output: int,
    lse: int | None,
    device: int | None,
    stream: int,
) -> None: ...
