//! Pages: who has which, for how long (PagedFlex, section III, Algorithm 1: RESERVE, ASSIGN, GATHER).
//!
//! - [`PagePool`]: free pages and owners of the others; lock-free, any thread.
//! - [`Sequence`]: the pages of one request; copy on write.
//! - [`PageManager`]: an engine's requests over one pool, with a cache of prefixes; writes page tables.
//!
//! It knows numbers only. K and V lie in the engine's memory, and the engine writes and copies them.
//!
//! ```
//! use std::sync::Arc;
//! use tilewright_plan::PageTable;
//! use tilewright_pages::{PageManager, PagePool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut pages = PageManager::new(Arc::new(PagePool::new(1000)?), 16)?;
//! let prompt: Vec<u32> = (0..40).collect();
//!
//! let first = pages.create(0, &prompt)?;
//! assert_eq!(first.cached_tokens, 0);
//! let appended = pages.append(first.request, &prompt)?;
//! for slot in pages.slots(first.request, appended.tokens)? {
//!     let _row = slot.page * 16 + slot.slot; // where the engine writes the token's K and V
//! }
//! pages.append(first.request, &[40])?; // the next step: the prompt has been computed
//!
//! // The same prompt again: two full pages are there, 8 tokens are left to compute.
//! let second = pages.create(0, &prompt)?;
//! assert_eq!(second.cached_tokens, 32);
//! pages.append(second.request, &prompt[32..])?;
//!
//! let (mut entries, mut seq_lens) = ([-1; 2 * 3], [0; 2]);
//! pages.write_page_table(&[first.request, second.request], 3, &mut entries, &mut seq_lens)?;
//! assert_eq!((entries[..2] == entries[3..5], seq_lens), (true, [41, 40]));
//! PageTable::new(&entries, 3, &seq_lens, 16)?;
//! # Ok(())
//! # }
//! ```

mod error;
mod free_pages;
mod manager;
mod pool;
mod prefix_cache;
mod sequence;
mod sync;
mod tables;
mod truncation;
mod waste;

#[cfg(test)]
mod manager_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod sequence_tests;

pub use error::PageError;
pub use manager::{Created, PageManager, RequestId};
pub use pool::PagePool;
pub use sequence::{Appended, CopyPage, Sequence, Slot};
pub use tables::Csr;
pub use waste::Waste;
