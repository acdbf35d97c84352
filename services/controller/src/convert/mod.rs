//! Between the wire and the core: the only place that sees both.

mod refusals;
mod requests;
mod view;

pub use refusals::refusal;
pub use requests::{
    alter, confirm, create, delete, folder_statuses, registered, registration, topic_id,
};
pub use view::{delta, describe_cluster, describe_topic, snapshot, topic, topics};
