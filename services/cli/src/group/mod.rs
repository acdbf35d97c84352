//! `talweg group`: one call, one answer; `lag --watch` is a stream of them.

mod lag;
pub mod shapes;

use crate::{
    args::{Globals, GroupCommand, ResetArgs, ResetTo},
    connect,
    failure::Failure,
    out,
    shapes::table,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use talweg_client::Client;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::{self, reset_offsets_request::To};

const GROUP_COLUMNS: &[&str] = &[
    "group",
    "state",
    "members",
    "assignor",
    "group_epoch",
    "shard",
    "coordinator",
];
const MEMBER_COLUMNS: &[&str] = &[
    "member_id",
    "client_id",
    "instance_id",
    "kind",
    "live",
    "member_epoch",
    "assignment",
    "revoking",
];
const OFFSET_COLUMNS: &[&str] = &[
    "topic",
    "partition",
    "committed_offset",
    "leader_epoch",
    "metadata",
];
const CHANGE_COLUMNS: &[&str] = &["topic", "partition", "from", "to"];

/// Runs a group command.
pub async fn run(globals: &Globals, command: GroupCommand) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    match command {
        GroupCommand::List => list(globals, &client).await,
        GroupCommand::Describe { group } => describe(globals, &client, group).await,
        GroupCommand::Lag(args) => lag::run(globals, &client, args).await,
        GroupCommand::Reset(args) => reset(globals, &client, args).await,
        GroupCommand::Forget {
            group,
            topic,
            partition,
        } => forget(globals, &client, group, topic, partition).await,
        GroupCommand::Delete { group } => delete(globals, &client, group).await,
    }
}

async fn list(globals: &Globals, client: &Client) -> Result<(), Failure> {
    let listed = client
        .groups()
        .list_groups(v1::ListGroupsRequest {})
        .await?;
    let groups: Vec<Value> = listed.groups.iter().map(shapes::group).collect();
    let missing: Vec<u32> = listed.missing.iter().map(|it| it.coordinator).collect();
    let value = json!({
        "groups": groups,
        "missing_coordinators": missing,
        "missing_shards": listed.missing_shards,
    });
    out::print(globals.json, &value, || table(GROUP_COLUMNS, &groups))?;
    // What there is was printed; a script must still see that it is not all.
    match missing_from(&listed) {
        Some(refusal) => Err(refusal.into()),
        None => Ok(()),
    }
}

/// Why the list may not be whole.
fn missing_from(listed: &v1::ListGroupsResponse) -> Option<Refusal> {
    let mut parts = Vec::new();
    for missing in &listed.missing {
        let why = missing.error.as_ref().map_or("", |it| it.message.as_str());
        parts.push(format!(
            "coordinator {} did not answer: {why}",
            missing.coordinator
        ));
    }
    if !listed.missing_shards.is_empty() {
        let shards: Vec<String> = listed.missing_shards.iter().map(u32::to_string).collect();
        parts.push(format!(
            "no coordinator serves the shards {}",
            shards.join(", ")
        ));
    }
    let why = || format!("groups may be missing from the list: {}", parts.join("; "));
    (!parts.is_empty()).then(|| Refusal::unavailable(why()))
}

async fn describe(globals: &Globals, client: &Client, group: String) -> Result<(), Failure> {
    let calls = client.groups();
    let request = v1::DescribeGroupRequest {
        group: group.clone(),
    };
    let described = calls.describe_group(request).await?;
    let request = v1::FetchOffsetsRequest {
        group,
        topic: String::new(),
    };
    let stored = calls.fetch_offsets(request).await?;
    let members: Vec<Value> = described.members.iter().map(shapes::member).collect();
    let offsets: Vec<Value> = stored.offsets.iter().map(shapes::offset).collect();
    let mut value = shapes::group(&described.group.unwrap_or_default());
    value["members"] = json!(members);
    value["offsets"] = json!(offsets);
    out::print(globals.json, &value, || {
        let mut head = value.clone();
        head["members"] = members.len().into();
        let mut text = table(GROUP_COLUMNS, &[head]);
        for (columns, rows) in [(MEMBER_COLUMNS, &members), (OFFSET_COLUMNS, &offsets)] {
            if !rows.is_empty() {
                // Writing to a string cannot fail.
                let _ = write!(text, "\n{}", table(columns, rows));
            }
        }
        text
    })
}

async fn reset(globals: &Globals, client: &Client, args: ResetArgs) -> Result<(), Failure> {
    let to = match args.to {
        ResetTo::Earliest => To::Earliest(true),
        ResetTo::Latest => To::Latest(true),
        ResetTo::Offset(offset) => To::Offset(offset),
        ResetTo::Time(ms) => To::TimestampMs(ms),
        ResetTo::Shift(records) => To::Shift(records),
    };
    let request = v1::ResetOffsetsRequest {
        group: args.group.clone(),
        topic: args.topic,
        execute: args.execute,
        to: Some(to),
    };
    let answer = client.groups().reset_offsets(request).await?;
    let changes: Vec<Value> = answer
        .before
        .iter()
        .zip(&answer.after)
        .map(|(before, after)| shapes::change(before, after))
        .collect();
    let value = json!({"group": args.group, "executed": args.execute, "changes": changes});
    out::print(globals.json, &value, || {
        let mut text = table(CHANGE_COLUMNS, &changes);
        if !args.execute {
            text.push_str("nothing was changed; --execute does it\n");
        }
        text
    })
}

async fn forget(
    globals: &Globals,
    client: &Client,
    group: String,
    topic: String,
    partitions: Vec<u32>,
) -> Result<(), Failure> {
    let request = v1::DeleteOffsetsRequest {
        group: group.clone(),
        topic,
        partitions,
    };
    let answer = client.groups().delete_offsets(request).await?;
    let deleted: Vec<Value> = answer.deleted.iter().map(shapes::offset).collect();
    let value = json!({"group": group, "deleted": deleted});
    out::print(globals.json, &value, || table(OFFSET_COLUMNS, &deleted))
}

async fn delete(globals: &Globals, client: &Client, group: String) -> Result<(), Failure> {
    let request = v1::DeleteGroupRequest {
        group: group.clone(),
    };
    client.groups().delete_group(request).await?;
    let value = json!({"group": group, "deleted": true});
    out::print(globals.json, &value, || format!("deleted group {group}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_not_whole_says_so() {
        let mut listed = v1::ListGroupsResponse::default();
        assert_eq!(missing_from(&listed), None);
        listed.missing.push(v1::MissingCoordinator {
            coordinator: 7,
            error: Some(Refusal::unavailable("gone").detail()),
        });
        listed.missing_shards = vec![3, 9];
        let said = missing_from(&listed).expect("not whole").message;
        assert!(
            said.contains("coordinator 7") && said.contains("3, 9"),
            "{said}"
        );
    }
}
