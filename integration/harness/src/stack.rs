//! The planes as real processes on one machine.

use crate::{Process, StackBuilder, disk::Disk, net::Network};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use talweg_proto::coordinator::v1::{
    CheckShardsRequest, coordinator_service_client::CoordinatorServiceClient,
};
use talweg_types::CONSUMER_OFFSETS;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

const START: Duration = Duration::from_secs(30);
/// For shards that are on their way up, and a replay of each.
const AGREE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(2);

/// Controllers, storage nodes, coordinators and gateways. Data and logs are kept if the
/// test fails.
pub struct Stack {
    /// The first controller.
    pub controller: Process,
    /// Further controllers, with etcd.
    pub standbys: Vec<Process>,
    pub etcd: Option<Process>,
    /// URL of that etcd.
    pub etcd_url: Option<String>,
    pub storages: Vec<Process>,
    pub coordinators: Vec<Process>,
    pub gateways: Vec<Process>,
    pub(crate) urls: Urls,
    pub(crate) storage_data: Vec<PathBuf>,
    // From here on the order counts: processes above end first, then what they stood on.
    pub(crate) disks: Vec<Disk>,
    pub(crate) network: Option<Network>,
    pub(crate) _memory: Option<TempDir>,
    pub(crate) temp: Option<TempDir>,
}

/// Where everything listens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Urls {
    pub controllers: Vec<String>,
    pub storages: Vec<String>,
    pub coordinators: Vec<String>,
    pub gateways: Vec<String>,
    pub gateways_http: Vec<String>,
    /// Where each process shows its metrics, by plane.
    pub scraped: Vec<(&'static str, u16)>,
}

impl Stack {
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    /// Where each process shows its metrics: its plane and its port.
    pub fn scraped(&self) -> &[(&'static str, u16)] {
        &self.urls.scraped
    }

    /// Where the processes of a plane show their metrics.
    pub fn ports_of(&self, plane: &str) -> Vec<u16> {
        let of = |(name, port): &(&'static str, u16)| (*name == plane).then_some(*port);
        self.scraped().iter().filter_map(of).collect()
    }

    /// gRPC URL of gateway `i`.
    pub fn gateway(&self, i: usize) -> String {
        self.urls.gateways[i].clone()
    }

    /// HTTP URL of gateway `i`.
    pub fn gateway_http(&self, i: usize) -> String {
        self.urls.gateways_http[i].clone()
    }

    /// gRPC URL of storage node `i` (by its place here, not its node id).
    pub fn storage(&self, i: usize) -> String {
        self.urls.storages[i].clone()
    }

    /// gRPC URL of coordinator `i` (by its place here, not its node id).
    pub fn coordinator(&self, i: usize) -> String {
        self.urls.coordinators[i].clone()
    }

    /// gRPC URL of the first controller.
    pub fn controller(&self) -> String {
        self.urls.controllers[0].clone()
    }

    /// gRPC URLs of all controllers.
    pub fn controllers(&self) -> Vec<String> {
        self.urls.controllers.clone()
    }

    /// Data folder of storage node `i`.
    pub fn storage_data(&self, i: usize) -> PathBuf {
        self.storage_data[i].clone()
    }

    /// Folder of everything.
    pub fn folder(&self) -> &Path {
        self.temp.as_ref().expect("until dropped").path()
    }

    /// The network in between, if it is one of our own.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("built with `in_namespaces`")
    }

    /// The disk of storage node `i`, if it has one of its own.
    pub fn disk(&self, i: usize) -> &Disk {
        self.disks.get(i).expect("built with `on_disks`")
    }

    /// A controller by its place among [`Stack::controllers`].
    pub fn controller_at(&mut self, i: usize) -> &mut Process {
        match i.checked_sub(1) {
            None => &mut self.controller,
            Some(standby) => &mut self.standbys[standby],
        }
    }

    /// Starts a controller that was killed; it may be active or stand by.
    pub fn restart_controller(&mut self, i: usize) {
        let url = &self.urls.controllers[i];
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.expect("a port");
        self.controller_at(i).start_at(port, START);
    }

    /// What our own processes have said that a person must look at: errors and panics.
    pub fn alarms(&self) -> Vec<String> {
        let ours = std::iter::once(&self.controller)
            .chain(&self.standbys)
            .chain(&self.storages)
            .chain(&self.coordinators)
            .chain(&self.gateways);
        let mut alarms = Vec::new();
        for process in ours {
            let log = process.log();
            let loud = |line: &&str| line.contains(" ERROR ") || line.contains("panicked at");
            let lines = log.lines().filter(loud);
            alarms.extend(lines.map(|line| format!("{}: {line}", process.name())));
        }
        alarms
    }

    /// Every process that runs.
    pub fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        std::iter::once(&mut self.controller)
            .chain(&mut self.standbys)
            .chain(&mut self.etcd)
            .chain(&mut self.storages)
            .chain(&mut self.coordinators)
            .chain(&mut self.gateways)
            .filter_map(|process| process.is_running().then_some(process))
    }
}

impl Stack {
    /// Waits until every shard is served by one coordinator and is, live and as kept,
    /// what a replay of its log gives.
    pub async fn shards_agree(&self) {
        crate::eventually("shards are as their logs have them", AGREE, || async {
            let mut served = Vec::new();
            for url in &self.urls.coordinators {
                served.extend(checked(url).await?);
            }
            served.sort_unstable();
            let all: Vec<u32> = (0..self.shard_count().await?).collect();
            match served == all {
                true => Ok(()),
                false => Err(format!("{served:?} are served of {}", all.len())),
            }
        })
        .await;
    }

    /// Partitions of the internal topic, as a gateway that lives describes it.
    async fn shard_count(&self) -> Result<u32, String> {
        let mut why = "there is no gateway".to_owned();
        for url in &self.urls.gateways {
            let described = match reach(url).await {
                Ok(channel) => crate::raw::describe(&channel, CONSUMER_OFFSETS).await,
                Err(broken) => Err(broken),
            };
            match described {
                Ok(partitions) => {
                    return u32::try_from(partitions.len()).map_err(|e| e.to_string());
                }
                Err(broken) => why = broken,
            }
        }
        Err(why)
    }
}

async fn reach(url: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| e.to_string())?;
    let channel = endpoint.connect_timeout(CONNECT).connect().await;
    channel.map_err(|e| format!("{url}: {e}"))
}

/// The shards that a coordinator serves; none of one that is not there, whose shards
/// another one has then.
///
/// # Errors
/// It does not answer, or a shard is not as its log has it.
async fn checked(url: &str) -> Result<Vec<u32>, String> {
    let Ok(channel) = reach(url).await else {
        return Ok(Vec::new());
    };
    let mut client = CoordinatorServiceClient::new(channel);
    let answer = client.check_shards(CheckShardsRequest {}).await;
    let shards = answer
        .map_err(|e| format!("{url}: {e}"))?
        .into_inner()
        .shards;
    let apart = shards
        .iter()
        .find(|shard| shard.live_hash != shard.replayed_hash || shard.live_hash != shard.view_hash);
    match apart {
        Some(shard) => Err(format!("{url}: {shard:?}")),
        None => Ok(shards.iter().map(|shard| shard.shard).collect()),
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // A process that waits for a frozen disk cannot be killed.
        self.disks.iter().for_each(Disk::thaw);
        if std::thread::panicking()
            && let Some(temp) = self.temp.take()
        {
            let kept = temp.keep();
            self.keep_disks(&kept);
            eprintln!("data and logs are kept in {}", kept.display());
        }
    }
}

impl Stack {
    /// Disks of their own stay as images; `mount -o loop` shows them again.
    fn keep_disks(&self, folder: &Path) {
        if !self.disks.is_empty() {
            eprintln!("the storage nodes' disks are {}/*.img", folder.display());
        }
    }
}
