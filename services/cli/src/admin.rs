//! `talweg node` and `talweg partition`: one call, one answer.

use crate::{
    args::{Globals, NamedPartition, NodeCommand, PartitionCommand},
    connect,
    failure::Failure,
    out,
    progress::{self, Estimate},
    shapes, text,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use talweg_client::Client;
use talweg_kit::errors::Refusal;
use talweg_proto::v1;

const MOVE_COLUMNS: &[&str] = &[
    "topic",
    "partition",
    "from",
    "to",
    "bytes_done",
    "bytes_total",
    "throttle_bytes_per_second",
    "reassignment_id",
];
/// A move is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A gateway has heard of what a controller has done.
const HEARD: Duration = Duration::from_secs(5);
/// Looks in a row that may fail.
const TROUBLE_MAX: u32 = 10;

/// Runs a node command.
pub async fn node(globals: &Globals, command: NodeCommand) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    let admin = client.admin();
    let (node_id, done) = match command {
        NodeCommand::Drain { node: node_id } => {
            let drained = admin.drain_node(v1::DrainNodeRequest { node_id }).await?;
            let value = json!({"node_id": node_id, "leaders_left": drained.leaders_left});
            return out::print(globals.json, &value, || {
                format!(
                    "draining node {node_id}; it still leads {}\n",
                    drained.leaders_left
                )
            });
        }
        NodeCommand::Undrain { node: node_id } => {
            admin
                .undrain_node(v1::UndrainNodeRequest { node_id })
                .await?;
            (node_id, "undrained")
        }
        NodeCommand::Remove { node: node_id } => {
            admin.remove_node(v1::RemoveNodeRequest { node_id }).await?;
            (node_id, "removed")
        }
    };
    let value = json!({"node_id": node_id, done: true});
    out::print(globals.json, &value, || format!("{done} node {node_id}\n"))
}

/// Runs a partition command.
pub async fn partition(globals: &Globals, command: PartitionCommand) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    match command {
        PartitionCommand::Reassign {
            partition,
            to,
            throttle,
            wait,
        } => reassign(globals, &client, partition, to, throttle, wait).await,
        PartitionCommand::Status => {
            let moves: Vec<_> = moves(&client).await?.iter().map(shape).collect();
            let value = json!({ "reassignments": moves });
            out::print(globals.json, &value, || shapes::table(MOVE_COLUMNS, &moves))
        }
        PartitionCommand::Cancel { partition } => cancel(globals, &client, &partition).await,
        PartitionCommand::Elect { partition, unclean } => {
            elect(globals, &client, partition, unclean).await
        }
    }
}

async fn reassign(
    globals: &Globals,
    client: &Client,
    partition: NamedPartition,
    to: Vec<u32>,
    throttle_bytes_per_second: u64,
    wait: bool,
) -> Result<(), Failure> {
    let NamedPartition { topic, partition } = partition;
    let request = v1::ReassignPartitionRequest {
        topic: topic.clone(),
        partition,
        to: to.clone(),
        throttle_bytes_per_second,
    };
    let begun = client.admin().reassign_partition(request).await?;
    if wait {
        follow(client, &begun.reassignment_id).await?;
        arrived(client, &topic, partition, &to).await?;
    }
    let value = json!({
        "reassignment_id": text::id(&begun.reassignment_id),
        "topic": topic,
        "partition": partition,
        "to": to,
        "done": wait,
    });
    out::print(globals.json, &value, || match wait {
        true => format!("{topic}:{partition} is on {to:?}\n"),
        false => format!("moving {topic}:{partition} to {to:?}; see: talweg partition status\n"),
    })
}

/// A move that is no longer under way was done, or cancelled, or another one has
/// followed it: only the replicas tell.
async fn arrived(client: &Client, topic: &str, index: u32, to: &[u32]) -> Result<(), Failure> {
    let found = described(client, topic, index, |found| found.replicas == to).await?;
    if found.replicas == to {
        return Ok(());
    }
    let message = format!(
        "{topic}:{index} is on {:?}, not on {to:?}: the move was cancelled, or another one has followed it",
        found.replicas
    );
    Err(Refusal::invalid("to", message).into())
}

/// A partition as it is once the gateway, which follows the controller, has heard of
/// what is awaited; or as it is after [`HEARD`].
async fn described(
    client: &Client,
    topic: &str,
    index: u32,
    awaited: impl Fn(&v1::PartitionDescription) -> bool,
) -> Result<v1::PartitionDescription, Refusal> {
    let begun = Instant::now();
    loop {
        let described = patiently(async || client.topics().describe(topic).await).await?;
        let mut partitions = described.partitions.into_iter();
        let found = partitions.find(|described| described.partition == index);
        let found = found.unwrap_or_default();
        if awaited(&found) || begun.elapsed() > HEARD {
            return Ok(found);
        }
        tokio::time::sleep(HEARD / 20).await;
    }
}

/// Asks again while a controller fails over; each try has waited already.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, Refusal>) -> Result<T, Refusal> {
    for _ in 0..TROUBLE_MAX {
        match ask().await {
            Err(refusal) if refusal.is_retriable() => tokio::time::sleep(LOOK_EVERY).await,
            answer => return answer,
        }
    }
    ask().await
}

/// Shows progress until the move is no longer under way.
async fn follow(client: &Client, id: &[u8]) -> Result<(), Failure> {
    let (started, mut estimate) = (Instant::now(), Estimate::default());
    loop {
        let listed = patiently(async || moves(client).await).await?;
        let Some(moving) = listed.iter().find(|moving| moving.reassignment_id == id) else {
            return Ok(());
        };
        show(moving, started.elapsed(), &mut estimate);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn show(moving: &v1::Reassignment, now: Duration, estimate: &mut Estimate) {
    let (Some(done), Some(total)) = (moving.bytes_done, moving.bytes_total) else {
        eprintln!("a node does not say how far it is");
        return;
    };
    let left = estimate.left(now, total.saturating_sub(done));
    eprintln!(
        "{} of {}, {} to go",
        progress::bytes(done),
        progress::bytes(total),
        progress::clock(left)
    );
}

async fn moves(client: &Client) -> Result<Vec<v1::Reassignment>, Refusal> {
    let listed = client
        .admin()
        .list_reassignments(v1::ListReassignmentsRequest {})
        .await?;
    Ok(listed.reassignments)
}

/// A move; one that is only planned has no id. What is not known is null.
pub fn shape(moving: &v1::Reassignment) -> Value {
    let id = Some(text::id(&moving.reassignment_id)).filter(|id| !id.is_empty());
    json!({
        "reassignment_id": id,
        "topic": moving.topic,
        "partition": moving.partition,
        "from": moving.from,
        "to": moving.to,
        "bytes_done": moving.bytes_done,
        "bytes_total": moving.bytes_total,
        "throttle_bytes_per_second": moving.throttle_bytes_per_second,
    })
}

async fn cancel(globals: &Globals, client: &Client, named: &NamedPartition) -> Result<(), Failure> {
    let moves = moves(client).await?;
    let found = moves
        .into_iter()
        .find(|moving| moving.topic == named.topic && moving.partition == named.partition);
    let NamedPartition { topic, partition } = named;
    let found = found.ok_or_else(|| {
        Refusal::invalid(
            "partition",
            format!("{topic}:{partition} is not being moved"),
        )
    })?;
    let value = shape(&found);
    let reassignment_id = found.reassignment_id;
    let request = v1::CancelReassignmentRequest { reassignment_id };
    client.admin().cancel_reassignment(request).await?;
    out::print(globals.json, &value, || {
        format!("the move of {topic}:{partition} is cancelled\n")
    })
}

async fn elect(
    globals: &Globals,
    client: &Client,
    named: NamedPartition,
    unclean: bool,
) -> Result<(), Failure> {
    let NamedPartition { topic, partition } = named;
    let request = v1::ElectLeaderRequest {
        topic: topic.clone(),
        partition,
        unclean,
    };
    let elected = client.admin().elect_leader(request).await?;
    let heard = |found: &v1::PartitionDescription| found.leader_epoch >= elected.leader_epoch;
    let recorded = described(client, &topic, partition, heard).await?.recovered;
    let value = elected_shape(&topic, partition, elected, recorded.as_ref());
    out::print(globals.json, &value, || {
        let head = format!(
            "node {} leads {topic}:{partition} in epoch {}\n",
            elected.leader, elected.leader_epoch
        );
        head + &shapes::partition_notes(&value)
    })
}

/// What was recorded of this election, not of an earlier one.
fn elected_shape(
    topic: &str,
    partition: u32,
    elected: v1::ElectLeaderResponse,
    recorded: Option<&v1::RecoveredDescription>,
) -> Value {
    let of_this = recorded.filter(|recorded| recorded.leader_epoch == elected.leader_epoch);
    json!({
        "topic": topic,
        "partition": partition,
        "leader": elected.leader,
        "leader_epoch": elected.leader_epoch,
        "recovered": of_this.map(shapes::recovered),
    })
}
