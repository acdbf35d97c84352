//! `talweg topic` and `talweg cluster`: one call, one answer.

use crate::{
    args::{AlterArgs, ClusterCommand, CreateArgs, Globals, Pair, TopicCommand},
    balance, connect,
    failure::Failure,
    out, shapes, text,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use talweg_client::Client;
use talweg_kit::errors::Refusal;
use talweg_proto::v1;

const PARTITION_COLUMNS: &[&str] = &[
    "partition",
    "leader",
    "leader_epoch",
    "replicas",
    "in_sync",
    "eligible",
    "last_in_sync",
    "log_start_offset",
    "last_stable_offset",
    "high_watermark",
    "log_end_offset",
    "flushed_end_offset",
];
const REPLICA_COLUMNS: &[&str] = &[
    "partition",
    "node",
    "in_sync",
    "log_start_offset",
    "high_watermark",
    "log_end_offset",
    "flushed_end_offset",
    "last_caught_up_ms",
    "size_bytes",
    "trouble",
];
const TOPIC_COLUMNS: &[&str] = &["name", "partition_count", "replication_factor", "topic_id"];
const KEY_COLUMNS: &[&str] = &["name", "type", "unit", "default", "range", "meaning"];
const NODE_COLUMNS: &[&str] = &[
    "plane",
    "node_id",
    "rack",
    "alive",
    "drain",
    "leaders",
    "replicas",
    "incarnation",
    "free_bytes",
    "grpc",
    "http",
    "version",
];

/// Runs a topic command.
pub async fn run(globals: &Globals, command: TopicCommand) -> Result<(), Failure> {
    let client = connect::client(globals)?;
    match command {
        TopicCommand::Create(args) => create(globals, &client, args).await,
        TopicCommand::List => list(globals, &client).await,
        TopicCommand::Describe { name } => describe(globals, &client, &name).await,
        TopicCommand::Alter(args) => alter(globals, &client, args).await,
        TopicCommand::Delete { name } => delete(globals, &client, &name).await,
        TopicCommand::ConfigKeys => config_keys(globals, &client).await,
    }
}

/// Runs a cluster command.
pub async fn cluster(globals: &Globals, command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Describe => describe_cluster(globals).await,
        ClusterCommand::Balance(args) => balance::run(globals, args).await,
    }
}

async fn describe_cluster(globals: &Globals) -> Result<(), Failure> {
    let described = connect::client(globals)?.cluster().await?;
    let value = shapes::cluster(&described);
    out::print(globals.json, &value, || {
        let head = format!(
            "cluster {}  controller {}  revision {}\n",
            value["cluster_id"].as_str().unwrap_or_default(),
            described.controller_address,
            described.revision
        );
        head + &shapes::table(NODE_COLUMNS, rows(&value["nodes"])) + &shapes::trouble(&described)
    })
}

async fn create(globals: &Globals, client: &Client, args: CreateArgs) -> Result<(), Failure> {
    let request = v1::CreateTopicRequest {
        name: args.name,
        partitions: args.partitions,
        replication_factor: args.replication_factor,
        config: settings(&args.config)?,
        idempotency_key: String::new(),
    };
    let created = client.topics().create(request).await?;
    changed(globals, "created", created.topic, &created.warnings)
}

async fn alter(globals: &Globals, client: &Client, args: AlterArgs) -> Result<(), Failure> {
    let request = v1::AlterTopicRequest {
        name: args.name,
        partitions: args.partitions,
        config: settings(&args.config)?,
        reset_config: args.reset,
    };
    let altered = client.topics().alter(request).await?;
    changed(globals, "altered", altered.topic, &altered.warnings)
}

fn changed(
    globals: &Globals,
    done: &str,
    topic: Option<v1::Topic>,
    warnings: &[String],
) -> Result<(), Failure> {
    let topic = topic.ok_or_else(|| Refusal::internal("the server's answer names no topic"))?;
    if !globals.json {
        warnings
            .iter()
            .for_each(|warning| eprintln!("warning: {warning}"));
    }
    out::print(
        globals.json,
        &shapes::changed_topic(&topic, warnings),
        || {
            format!(
                "{done} {} with {} partitions, id {}",
                topic.name,
                topic.partitions,
                text::id(&topic.topic_id)
            )
        },
    )
}

async fn list(globals: &Globals, client: &Client) -> Result<(), Failure> {
    let topics: Vec<Value> = client
        .topics()
        .list()
        .await?
        .iter()
        .map(|t| shapes::topic(t).into())
        .collect();
    let value = json!({ "topics": topics });
    out::print(globals.json, &value, || {
        shapes::table(TOPIC_COLUMNS, rows(&value["topics"]))
    })
}

async fn describe(globals: &Globals, client: &Client, name: &str) -> Result<(), Failure> {
    let value = shapes::described_topic(&client.topics().describe(name).await?);
    out::print(globals.json, &value, || {
        let head = format!(
            "{name}  id {}  replication factor {}  config {}\n",
            value["topic_id"].as_str().unwrap_or_default(),
            value["replication_factor"],
            value["config"]
        );
        head + &shapes::table(PARTITION_COLUMNS, rows(&value["partitions"]))
            + "\n"
            + &replicas_text(rows(&value["partitions"]))
    })
}

/// The replicas of all partitions, then what is out of the ordinary.
fn replicas_text(partitions: &[Value]) -> String {
    let (mut table, mut notes) = (Vec::new(), String::new());
    for partition in partitions {
        let number = &partition["partition"];
        for replica in rows(&partition["replicas_detail"]) {
            let mut row = replica.clone();
            row["partition"] = number.clone();
            row["trouble"] = match &replica["failure"] {
                Value::Null => replica["unknown"].clone(),
                failure => failure.clone(),
            };
            table.push(row);
        }
        notes += &shapes::partition_notes(partition);
    }
    shapes::table(REPLICA_COLUMNS, &table) + &notes
}

async fn delete(globals: &Globals, client: &Client, name: &str) -> Result<(), Failure> {
    let deleted = client.topics().delete(name).await?;
    let id = text::id(&deleted.topic_id);
    out::print(
        globals.json,
        &json!({ "name": name, "topic_id": id }),
        || format!("deleted {name}, id {id}"),
    )
}

async fn config_keys(globals: &Globals, client: &Client) -> Result<(), Failure> {
    let keys: Vec<Value> = client
        .topics()
        .config_keys()
        .await?
        .iter()
        .map(shapes::config_key)
        .collect();
    let value = json!({ "keys": keys });
    out::print(globals.json, &value, || {
        let (built, not_built): (Vec<Value>, Vec<Value>) = rows(&value["keys"])
            .iter()
            .cloned()
            .partition(|key| key["built"] == true);
        let mut text = shapes::table(KEY_COLUMNS, &built);
        if !not_built.is_empty() {
            text += "\nNot built in this version; setting one is refused:\n";
            text += &shapes::table(KEY_COLUMNS, &not_built);
        }
        text
    })
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Settings by name; the same name twice is a mistake that nobody should guess about.
fn settings(pairs: &[Pair]) -> Result<HashMap<String, String>, Failure> {
    let mut settings = HashMap::new();
    for pair in pairs {
        if settings
            .insert(pair.name.clone(), pair.value.clone())
            .is_some()
        {
            return Err(Failure::Usage(format!(
                "--config {} is given twice",
                pair.name
            )));
        }
    }
    Ok(settings)
}
