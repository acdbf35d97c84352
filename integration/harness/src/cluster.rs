//! A replicated topic as its cluster describes it: who leads, who is in sync,
//! and whether the replicas hold the same.

use crate::{Stack, binary, eventually, raw};
use std::{path::Path, process::Command, time::Duration};
use talweg_proto::v1::{
    DescribeClusterRequest, DescribeClusterResponse, DescribeTopicRequest, DescribeTopicResponse,
    PartitionDescription, cluster_service_client::ClusterServiceClient,
    topic_service_client::TopicServiceClient,
};
use tokio::time::timeout;
use tonic::transport::Channel;

/// For a node that was away to be in sync again.
pub const BACK: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(5);

/// One topic, seen through a gateway.
#[derive(Clone)]
pub struct Cluster {
    channel: Channel,
    topic: String,
}

impl Cluster {
    pub async fn connect(url: &str, topic: &str) -> Self {
        Self {
            channel: raw::connect(url).await,
            topic: topic.into(),
        }
    }

    async fn describe_topic(&self) -> Result<DescribeTopicResponse, String> {
        let request = DescribeTopicRequest {
            name: self.topic.clone(),
            ..Default::default()
        };
        let mut topics = TopicServiceClient::new(self.channel.clone());
        let described = timeout(ANSWER, topics.describe_topic(request)).await;
        let described = described.map_err(|_| "no answer".to_owned())?;
        Ok(described.map_err(|e| e.to_string())?.into_inner())
    }

    /// The partitions in the order of their numbers.
    ///
    /// # Errors
    /// The gateway's refusal, or that it did not answer.
    pub async fn describe(&self) -> Result<Vec<PartitionDescription>, String> {
        Ok(self.describe_topic().await?.partitions)
    }

    /// Waits until every partition has a leader and `replicas` in sync.
    pub async fn all_in_sync(&self, replicas: usize) -> Vec<PartitionDescription> {
        eventually("all in sync", BACK, || async {
            let partitions = self.describe().await?;
            let whole = |p: &PartitionDescription| p.leader > 0 && p.in_sync.len() == replicas;
            match partitions.iter().all(whole) {
                true => Ok(partitions),
                false => Err(format!("{partitions:?}")),
            }
        })
        .await
    }

    /// Place in [`Stack::storages`] of the node that leads `partition`: nodes
    /// get their ids in the order of their first start.
    pub async fn leader(&self, partition: u32) -> usize {
        let what = format!("a leader of partition {partition}");
        eventually(&what, BACK, || async {
            let partitions = self.describe().await?;
            let found = partitions.iter().find(|p| p.partition == partition);
            let leader = found.map_or(0, |p| p.leader);
            let place = usize::try_from(leader)
                .ok()
                .and_then(|id| id.checked_sub(1));
            place.ok_or_else(|| format!("{partitions:?}"))
        })
        .await
    }

    /// Nodes, sessions and the active controller.
    ///
    /// # Errors
    /// The refusal, or that there was no answer.
    pub async fn nodes(&self) -> Result<DescribeClusterResponse, String> {
        let mut cluster = ClusterServiceClient::new(self.channel.clone());
        let described = cluster.describe_cluster(DescribeClusterRequest::default());
        let described = timeout(ANSWER, described).await;
        let described = described.map_err(|_| "no answer".to_owned())?;
        Ok(described.map_err(|e| e.to_string())?.into_inner())
    }

    /// Place of the active controller among [`Stack::controllers`].
    pub async fn active_controller(&self, stack: &Stack) -> usize {
        eventually("an active controller", BACK, || async {
            let active = self.nodes().await?.controller_address;
            let urls = stack.controllers();
            let place = urls.iter().position(|url| *url == active);
            place.ok_or_else(|| format!("{active} among {urls:?}"))
        })
        .await
    }

    /// High watermarks by partition, as leaders tell them.
    pub async fn watermarks(&self) -> Vec<i64> {
        eventually("watermarks", BACK, || async {
            let now = self.describe().await?;
            let of = |p: &PartitionDescription| p.bounds.as_ref().map(|b| b.high_watermark);
            let all: Option<Vec<i64>> = now.iter().map(of).collect();
            all.filter(|all| all.iter().all(|end| *end > 0))
                .ok_or_else(|| format!("{now:?}"))
        })
        .await
    }

    async fn topic_id(&self) -> String {
        let described = eventually("the topic", BACK, || self.describe_topic()).await;
        let id = described.topic.expect("a topic").topic_id;
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex.len(), 32, "16 bytes");
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        parts.join("-")
    }

    /// Waits until all replicas of every partition are in sync; how many each has.
    pub async fn whole(&self) -> usize {
        let what = format!("all replicas of {} in sync", self.topic);
        eventually(&what, BACK, || async {
            let partitions = self.describe().await?;
            let whole =
                |p: &PartitionDescription| p.leader > 0 && p.in_sync.len() == p.replicas.len();
            let replicas = partitions.first().map_or(0, |p| p.replicas.len());
            match replicas > 0 && partitions.iter().all(whole) {
                true => Ok(replicas),
                false => Err(format!("{partitions:?}")),
            }
        })
        .await
    }

    /// Waits until all are in sync, stops the storage nodes and compares the
    /// digests of all replicas below the watermarks.
    pub async fn replicas_agree(&self, stack: &mut Stack, replicas: usize) {
        self.all_in_sync(replicas).await;
        replicas_agree(stack, &[self]).await;
    }
}

/// The same for all replicas of several topics.
pub async fn replicas_agree(stack: &mut Stack, topics: &[&Cluster]) {
    let mut ends = Vec::new();
    for cluster in topics {
        let replicas = cluster.whole().await;
        ends.push((
            cluster.topic_id().await,
            replicas,
            cluster.watermarks().await,
        ));
    }
    tokio::task::block_in_place(|| {
        for storage in &mut stack.storages {
            storage.stop(Duration::from_secs(20));
        }
        for (id, replicas, ends) in ends {
            for (partition, end) in ends.iter().enumerate() {
                let name = format!("{id}-{partition}");
                let folders = (0..stack.storages.len())
                    .map(|i| stack.storage_data(i).join(&name))
                    .filter(|folder| folder.exists());
                let digests: Vec<_> = folders.map(|folder| digest(&folder, *end)).collect();
                assert_eq!(digests.len(), replicas, "replicas of {name}");
                assert!(
                    digests.iter().all(|digest| *digest == digests[0]),
                    "{name} below {end}: {digests:?}"
                );
            }
        }
    });
}

/// The digest of a replica's records below `to`, from its files.
pub fn digest(folder: &Path, to: i64) -> String {
    let output = Command::new(binary("talweg"))
        .args(["log", "dump", "--digest", "--to", &to.to_string(), "--json"])
        .arg(folder)
        .output()
        .expect("talweg runs");
    assert!(
        output.status.success(),
        "{}: {}",
        folder.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().last().expect("a line");
    let found: serde_json::Value = serde_json::from_str(line).expect("json");
    found["sha256"].as_str().expect("a digest").to_owned()
}
