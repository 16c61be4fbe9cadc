"""The batches that peers compute, and what they should find. All but the class can be used without torch."""
import functools

try:
    import torch
    NO_TORCH = None
except Exception as error:  # A torch that is there may still not load.
    torch, NO_TORCH = None, f"torch cannot be imported: {error}"

MASK = 0xFFFFFFFF
KEYS, VALUES, QUERY = 1, 2, 3
MAX_CASCADE_LEVELS = 8


class LeftOut(Exception):
    """A peer does not do this, and why."""


# The numbers work on Python's integers and on int64 tensors alike, whose products wrap to the same low bits.


def mix(bits):
    """The finalizer of MurmurHash3."""
    bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & MASK
    bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & MASK
    return bits ^ (bits >> 16)


def bits24(stream, place):
    """24 random bits of a place in a stream's block; `bits24 / 2**23 - 1` is its number."""
    return mix((place + stream * 0x9E3779B9) & MASK) >> 8


def number(stream, place):
    return bits24(stream, place) / (1 << 23) - 1


def filled(stream, shape, block, dtype, device):
    """A tensor of endless copies of a stream's block."""
    count = functools.reduce(lambda a, b: a * b, shape, 1)
    places = torch.arange(min(count, block), dtype=torch.int64, device=device)
    one = (bits24(stream, places).to(torch.float32) / (1 << 23) - 1).to(dtype)
    return as_bytes(one).repeat(-(-count // block))[:count].view(dtype).view(shape)


def as_bytes(x):
    """FP8 as its bytes, which torch moves everywhere; all else as it is."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


def page_rows(table, max_pages, lens, page_size):
    """The page ids of each request."""
    return [table[i * max_pages:][:-(-n // page_size)] for i, n in enumerate(lens)]


def csr(rows, lens, page_size):
    """Compressed rows: where each begins, the page ids, and the tokens on each last page."""
    begins = [0]
    for row in rows:
        begins.append(begins[-1] + len(row))
    return begins, [page for row in rows for page in row], [n - (len(row) - 1) * page_size for row, n in zip(rows, lens)]


def levels(rows, lens):
    """The levels of a regular tree, from the roots: each a list of (first request, past the last, page ids).

    Requests that share a node are neighbours. Each level has the same number of pages for all requests.
    """
    if len(set(map(len, rows))) != 1:
        raise LeftOut("the tree is not regular: requests have different numbers of pages")
    found, groups = [], [(0, len(rows))]
    for column in range(len(rows[0])):
        finer = []
        for begin, end in groups:
            cuts = [r for r in range(begin + 1, end) if rows[r][column] != rows[r - 1][column]]
            finer.extend(zip([begin, *cuts], [*cuts, end]))
        if not found or finer != groups:
            found.append([(begin, end, []) for begin, end in finer])
            groups = finer
        for begin, _, pages in found[-1]:
            pages.append(rows[begin][column])
    if any(len(set(lens[begin:end])) > 1 for begin, end, _ in found[-1]):
        raise LeftOut("requests end inside of a page that they share")
    if len(found) > MAX_CASCADE_LEVELS:
        raise LeftOut(f"the tree is not regular: {len(found)} levels")
    return found


def example():
    """A small batch as the tuner would send it: 64 requests below four nodes below one root."""
    page_size, nodes, pages = 16, (1, 4, 64), (16, 4, 8)
    table, first = [[] for _ in range(nodes[-1])], 0
    for count, length in zip(nodes, pages):
        for request, row in enumerate(table):
            begin = first + request * count // nodes[-1] * length
            row.extend(range(begin, begin + length))
        first += count * length
    return dict(id=0, dtype="bf16", kv_dtype="bf16", q_heads=32, kv_heads=8, head_dim=128, page_size=page_size, pages=first,
                max_pages=sum(pages), page_table=sum(table, []), seq_lens=[sum(pages) * page_size] * nodes[-1], scale=128 ** -0.5, block=1048618,
                sampled=[0, 21, 32, 63], tolerance=4e-2, skip=[])


class Batch:
    """A decode step: q [requests, q_heads, dim], k and v [pages, page, kv_heads, dim], table [requests, max_pages], lens [requests]."""

    def __init__(self, said, device):
        types = {"f16": torch.float16, "bf16": torch.bfloat16}
        self.device, self.dtype, self.fp8 = device, types[said["dtype"]], said["kv_dtype"] == "fp8"
        # Scales are 1.
        self.kv_dtype = torch.float8_e4m3fn if self.fp8 else types[said["kv_dtype"]]
        self.hq, self.hkv, self.dim, self.page = said["q_heads"], said["kv_heads"], said["head_dim"], said["page_size"]
        self.len_list, self.scale, self.sampled = said["seq_lens"], said["scale"], said["sampled"]
        self.tolerance = said["tolerance"]
        self.size, self.longest = len(self.len_list), max(self.len_list)
        self.rows = page_rows(said["page_table"], said["max_pages"], self.len_list, self.page)
        fill = functools.partial(filled, block=said["block"], device=device)
        pages = (said["pages"], self.page, self.hkv, self.dim)
        self.k, self.v = (fill(stream, pages, dtype=self.kv_dtype) for stream in (KEYS, VALUES))
        self.q = fill(QUERY, (self.size, self.hq, self.dim), dtype=self.dtype)
        # Kernels may look at entries past a request's pages: those are some page.
        self.table = self.ints(said["page_table"]).view(self.size, said["max_pages"]).clamp_(min=0)
        self.lens = self.ints(self.len_list)
        self.query_begins = self.ints(range(self.size + 1))
        self.expected = torch.stack([self.reference(i) for i in self.sampled])

    def ints(self, values):
        return torch.tensor(list(values), dtype=torch.int32, device=self.device)

    def reference(self, request):
        """Attention of one request in f64, [q_heads, dim]."""
        pages, n = self.table[request, :len(self.rows[request])].long(), self.len_list[request]
        k, v = (as_bytes(x)[pages].view(x.dtype).double().view(-1, self.hkv, self.dim)[:n].transpose(0, 1) for x in (self.k, self.v))
        q = self.q[request].double().view(self.hkv, self.hq // self.hkv, self.dim)
        return (torch.softmax(q @ k.transpose(1, 2) * self.scale, -1) @ v).reshape(self.hq, self.dim)

    def error(self, out):
        """The largest error of a row of a head among the sampled requests, relative to its norm."""
        found = out.reshape(self.size, self.hq, self.dim)[self.sampled].double()
        return ((found - self.expected).norm(dim=-1) / self.expected.norm(dim=-1)).max().item()

    def no_fp8(self, why="takes no K and V of FP8"):
        """For peers that do not read such pages beside a query of 16 bits."""
        if self.fp8:
            raise LeftOut(why)

    @functools.cached_property
    def gathered(self):
        """q, k and v as [requests, heads, tokens, dim]: prefixes are copied to each of their requests."""
        if len(set(self.len_list)) > 1:
            raise LeftOut("knows no pages, and requests have different lengths")
        needed = 3 * self.size * self.longest * self.hkv * self.dim * self.k.element_size()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.device.type == "cuda" and needed > torch.cuda.mem_get_info(self.device)[0]:
            raise LeftOut(f"knows no pages, and gathering takes {needed >> 20} MB, more than is free")
        tokens = (self.size, -1, self.hkv, self.dim)
        k, v = (x[self.table.long()].view(tokens)[:, :self.longest].transpose(1, 2).contiguous() for x in (self.k, self.v))
        return self.q.unsqueeze(2), k, v
