//! The group endpoints. A member of this surface lives in its group's coordinator
//! like any other, so that any gateway goes on where another one stopped.

mod alive;
mod member;
mod offsets;
mod poll;
mod query;
mod reading;

pub use offsets::{commit_group, commit_topic, lag, seek};
pub use poll::{consume, records};
