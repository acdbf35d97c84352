//! Reading: many partitions over one stream per leader (or one to a gateway),
//! with positions kept here, so that a broken or drained stream costs nothing
//! but time.
//!
//! [`FetchCore`] decides (pure), [`FetchUpstream`] acts on real streams; both
//! are the lower half of a gateway's Fetch stream as well. [`Fetcher`] is for
//! applications.

mod core;
mod event;
mod fetcher;
mod part;
mod source;
mod upstream;

#[cfg(test)]
mod tests;

pub use core::{Effect, FetchCore, FetchCoreConfig};
pub use event::{Data, FetchData, FetchEvent, Interest, StartAt};
pub use fetcher::{FetchStart, FetchedRecord, Fetcher, FetcherConfig, decode_frame};
pub use upstream::FetchUpstream;
