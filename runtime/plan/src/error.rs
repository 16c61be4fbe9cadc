//! What an engine can get wrong, said before anything is computed.

use tilewright_heuristics::GeometryError;

/// Why no plan can be made of a page table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The layout makes no sense.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The page table has another size than its shape says.
    #[error("the page table has {found} entries, [batch, max_pages] = [{batch}, {max_pages}] needs {}", batch * max_pages)]
    TableSize {
        /// Entries given.
        found: usize,
        /// Requests.
        batch: usize,
        /// Columns.
        max_pages: usize,
    },
    /// Rows are named for another number of requests than there are lengths.
    #[error("`order` names {found} rows for {needed} requests")]
    Order {
        /// Rows named.
        found: usize,
        /// Requests.
        needed: usize,
    },
    /// A named row is not in the page table.
    #[error("request {request}: its row is {row}, and the page table has {rows} rows")]
    OrderRow {
        /// The request.
        request: usize,
        /// The row named.
        row: i32,
        /// Rows of the table.
        rows: usize,
    },
    /// Compressed rows have another number of beginnings than requests.
    #[error("`indptr` has {found} entries, one a request and one more are {needed}")]
    Rows {
        /// Entries given.
        found: usize,
        /// Entries needed.
        needed: usize,
    },
    /// A compressed row lies outside of the pages.
    #[error("request {request}: its row is {begin}..{end} of `indices`, which has {entries} entries")]
    Row {
        /// The request.
        request: usize,
        /// Where its row begins.
        begin: i32,
        /// Where it ends.
        end: i32,
        /// Entries of all rows.
        entries: usize,
    },
    /// A last page holds nothing, or more than a page.
    #[error("request {request}: its last page holds {tokens} tokens, a page has 1 to {page_size}")]
    LastPage {
        /// The request.
        request: usize,
        /// Tokens said to be there.
        tokens: i32,
        /// Tokens of a page.
        page_size: u32,
    },
    /// A request has more tokens than its row has pages for.
    #[error(
        "request {request}: {seq_len} tokens need {needed} pages, its row of the page table has {max_pages}"
    )]
    TooLong {
        /// The request.
        request: usize,
        /// Its tokens.
        seq_len: u32,
        /// Pages that they need.
        needed: usize,
        /// Columns of the page table.
        max_pages: usize,
    },
    /// A used entry names no page.
    #[error("request {request}, column {column}: page {page} within its length is negative")]
    NegativePage {
        /// The request.
        request: usize,
        /// The column.
        column: usize,
        /// The entry.
        page: i32,
    },
    /// Another number of query counts than requests.
    #[error(
        "`query_lens` has {found} entries, the batch {needed} requests: give one a request, 0 for one that is not computed"
    )]
    QueryLens {
        /// Entries given.
        found: usize,
        /// Entries needed.
        needed: usize,
    },
    /// A request has more queries than tokens.
    #[error(
        "request {request}: {query_len} query tokens, but only {seq_len} tokens in the cache; write K and V of the query tokens first and \
         count them in the request's length"
    )]
    QueryLen {
        /// The request.
        request: usize,
        /// Its queries.
        query_len: u32,
        /// Its tokens.
        seq_len: u32,
    },
    /// Lengths of another number of queries than there are.
    #[error(
        "there are places for {found} queries, `query_lens` counts {needed}: a plan serves the counts that it was made for"
    )]
    Queries {
        /// Queries that there is room for.
        found: usize,
        /// Queries of all requests.
        needed: usize,
    },
    /// More rows, tokens or partials than 32 bits count.
    #[error("the batch is too large: {0} does not fit 32 bits; split the batch")]
    TooLarge(&'static str),
    /// More query heads a KV head than 16 bits count.
    #[error("{0} query heads share one KV head; at most 65535 can")]
    GqaRatio(u32),
    /// The page table was made for another page size.
    #[error("the page table counts {table} tokens a page, the geometry {geometry}")]
    PageSize {
        /// The page table's.
        table: u32,
        /// The geometry's.
        geometry: u32,
    },
}
