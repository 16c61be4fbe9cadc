//! What an engine can get wrong, said before anything is computed.

use tilewright_heuristics::{Dtype, GeometryError};

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

/// Why a live forest cannot follow a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForestError {
    /// No request has this number.
    #[error("request {request} is not in the forest: add it first")]
    UnknownRequest {
        /// The number.
        request: u32,
    },
    /// Another request has this number.
    #[error("request {request} is in the forest already: remove or rename it first")]
    RequestPresent {
        /// The number.
        request: u32,
    },
    /// The number is no slot of a batch.
    #[error("request {request} is out of range: number the slots of the batch from 0 to {}", limit - 1)]
    RequestNumber {
        /// The number.
        request: u32,
        /// Numbers are below this.
        limit: u32,
    },
    /// A request cannot keep pages that it does not have.
    #[error("request {request} has {pages} pages, it cannot keep {kept}; append the others")]
    Truncate {
        /// The request.
        request: u32,
        /// Pages that it has.
        pages: u32,
        /// Pages that it is to keep.
        kept: u32,
    },
    /// An entry names no page.
    #[error("request {request}, column {column}: page {page} is negative; give used entries only")]
    NegativePage {
        /// The request.
        request: u32,
        /// The column.
        column: u32,
        /// The entry.
        page: i32,
    },
    /// More columns than 32 bits count.
    #[error("request {request} has {has} pages, {given} more do not fit 32 bits")]
    TooManyPages {
        /// The request.
        request: u32,
        /// Pages that it has.
        has: u32,
        /// Pages to come.
        given: usize,
    },
}

/// Why a plan cannot be executed with these arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The plan was made for another element type.
    #[error("the plan is for {planned}, the arguments are {given}")]
    Dtype {
        /// The plan's.
        planned: Dtype,
        /// The arguments'.
        given: Dtype,
    },
    /// The kernels do not exist for this head dimension.
    #[error("head_dim {0} is not supported: it must be a multiple of 16")]
    HeadDim(u32),
    /// A slice has the wrong length.
    #[error("`{name}` has {found} elements, the plan needs {needed}")]
    Length {
        /// The argument.
        name: &'static str,
        /// Its elements.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// An option of the attention has a value that means nothing.
    #[error("`{name}` is {value}: {message}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// A page lies outside of the cache.
    #[error("page {page} reaches element {end} of `{name}`, which has {found}")]
    PageOutside {
        /// `keys` or `values`.
        name: &'static str,
        /// The largest page of the plan.
        page: i32,
        /// Where it ends.
        end: usize,
        /// Elements of the cache.
        found: usize,
    },
}

/// Why states cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatesError {
    /// There is nothing to merge.
    #[error("no state was given: a merge takes at least one")]
    NoState,
    /// More states than a launch takes.
    #[error(
        "{found} states were given, a launch merges {most} at most: merge them in groups, whose results are states again"
    )]
    TooMany {
        /// States given.
        found: usize,
        /// States of a launch.
        most: usize,
    },
    /// There is no merge for this head dimension.
    #[error("head_dim {head_dim} is not supported: it must be {supported}")]
    HeadDim {
        /// The head dimension.
        head_dim: u32,
        /// What would be right.
        supported: &'static str,
    },
    /// The output is not of whole rows.
    #[error("`output` has {found} elements, which is no whole number of rows of {head_dim}")]
    Rows {
        /// Its elements.
        found: usize,
        /// Elements of a row.
        head_dim: u32,
    },
    /// More rows than a launch counts.
    #[error("{0} rows do not fit 32 bits: merge them in several calls")]
    TooManyRows(usize),
    /// A slice has the wrong length.
    #[error("`{name}`{} has {found} elements, the merge needs {needed}", of_state(*state))]
    Length {
        /// `output` or `lse`.
        name: &'static str,
        /// The state that it belongs to; `None` for the result.
        state: Option<usize>,
        /// Its elements.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// An address that the kernel's loads cannot serve.
    #[error("`{name}`{} lies at {address:#x}: it must be a multiple of {multiple} bytes", of_state(*state))]
    Misaligned {
        /// `output` or `lse`.
        name: &'static str,
        /// The state that it belongs to; `None` for the result.
        state: Option<usize>,
        /// Where it lies.
        address: u64,
        /// What divides a good address.
        multiple: u64,
    },
    /// What is written overlaps a state.
    #[error(
        "the result's `{written}` overlaps `{read}` of state {state}: in place it may only be the very `{written}` of state 0"
    )]
    Overlap {
        /// `output` or `lse` of the result.
        written: &'static str,
        /// `output` or `lse` of the state.
        read: &'static str,
        /// The state.
        state: usize,
    },
}

fn of_state(state: Option<usize>) -> String {
    state.map_or_else(String::new, |state| format!(" of state {state}"))
}
