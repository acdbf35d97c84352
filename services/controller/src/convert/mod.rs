//! Between the wire and the core: the only place that sees both.

mod cluster;
mod in_sync;
mod refusals;
mod requests;
mod view;

pub use cluster::{balance, cancel, elect, reassign, stop_balance};
pub use in_sync::{alter_in_sync, ask_ends, in_sync_results, replica_ends};
pub use refusals::refusal;
pub use requests::{
    alter, confirm, create, delete, derive, folder_statuses, health, registered, registration,
    topic_id,
};
pub use view::{
    BalanceTold, balance_progress, delta, describe_cluster, describe_topic, partition,
    reassignments, snapshot, topic, topics, wire_revision,
};
