//! etcd processes of our own: free ports, data in memory, killed when dropped.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use talweg_metastore::{KeyRange, Metastore};
use talweg_metastore_etcd::{EtcdConfig, EtcdMetastore};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Longer than any wait of these tests needs.
pub const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Another process may take a free port before etcd does.
const STARTS: usize = 5;

pub struct Member {
    arguments: Vec<String>,
    pub client_port: u16,
    folder: PathBuf,
    child: Option<Child>,
}

/// One etcd cluster. Its processes end with it, also when a test panics.
pub struct Etcd {
    pub members: Vec<Member>,
    _data: TempDir,
}

impl Etcd {
    /// One member, ready.
    pub async fn one() -> Self {
        Self::start(1).await
    }

    /// `size` members that have a leader.
    pub async fn start(size: usize) -> Self {
        for _ in 0..STARTS {
            let mut cluster = Self::spawn(size);
            if cluster.until_ready().await {
                return cluster;
            }
        }
        panic!("etcd did not start, {STARTS} times; does it run by hand?");
    }

    fn spawn(size: usize) -> Self {
        // Nothing here need survive the machine, and etcd syncs every write.
        let memory = Path::new("/dev/shm");
        let data = match memory.is_dir() {
            true => TempDir::new_in(memory),
            false => TempDir::new(),
        };
        let data = data.expect("folder");
        let ports: Vec<_> = (0..size).map(|_| (free_port(), free_port())).collect();
        let peers: Vec<_> = ports.iter().map(|(_, peer)| url(*peer)).collect();
        let named = peers
            .iter()
            .enumerate()
            .map(|(i, url)| format!("m{i}={url}"));
        let cluster = named.collect::<Vec<_>>().join(",");
        let members = ports.iter().enumerate().map(|(i, (client_port, _))| {
            let folder = data.path().join(format!("m{i}"));
            let arguments = arguments(i, &folder, &url(*client_port), &peers[i], &cluster);
            let child = Some(run(&arguments));
            Member {
                arguments,
                client_port: *client_port,
                folder,
                child,
            }
        });
        Self {
            members: members.collect(),
            _data: data,
        }
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|m| url(m.client_port)).collect()
    }

    pub fn config(&self) -> EtcdConfig {
        EtcdConfig::new(self.endpoints(), "test")
    }

    pub async fn store(&self) -> EtcdMetastore {
        connect(self.config()).await
    }

    /// False if a process has ended.
    async fn until_ready(&mut self) -> bool {
        let deadline = Instant::now() + DEADLINE;
        for i in 0..self.members.len() {
            let endpoint = url(self.members[i].client_port);
            let store = connect(EtcdConfig::new([endpoint], "ready")).await;
            while store.range(KeyRange::all(), None, 1).await.is_err() {
                assert!(Instant::now() < deadline, "etcd does not become ready");
                if self.members.iter_mut().any(Member::has_ended) {
                    return false;
                }
                sleep(POLL).await;
            }
        }
        true
    }

    /// The index of the leader.
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + DEADLINE;
        loop {
            for (i, endpoint) in self.endpoints().iter().enumerate() {
                let client = etcd_client::Client::connect([endpoint], None).await;
                let status = client.expect("client").status().await;
                let leads = |s: &etcd_client::StatusResponse| {
                    s.header()
                        .is_some_and(|header| header.member_id() == s.leader())
                };
                if status.as_ref().is_ok_and(leads) {
                    return i;
                }
            }
            assert!(Instant::now() < deadline, "no etcd member leads");
            sleep(POLL).await;
        }
    }
}

impl Member {
    fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it without ending it: it answers nothing and closes nothing.
    pub fn hang(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on after [`Member::hang`].
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().expect("it runs").id();
        let id = i32::try_from(id).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a pid"), signal).expect("signalled");
    }

    /// Starts it empty and as another cluster, as after a restored backup.
    pub fn become_another_cluster(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.folder).expect("remove");
        let token = ["--initial-cluster-token".into(), "another".into()];
        self.arguments.extend(token);
        self.restart();
    }

    /// Starts it again with the data it had.
    pub fn restart(&mut self) {
        self.kill();
        self.child = Some(run(&self.arguments));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub async fn connect(config: EtcdConfig) -> EtcdMetastore {
    EtcdMetastore::connect(config).await.expect("connect")
}

pub fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    listener.local_addr().expect("address").port()
}

fn arguments(index: usize, folder: &Path, client: &str, peer: &str, cluster: &str) -> Vec<String> {
    let pairs = [
        ("--name", format!("m{index}")),
        ("--data-dir", folder.display().to_string()),
        ("--listen-client-urls", client.into()),
        ("--advertise-client-urls", client.into()),
        ("--listen-peer-urls", peer.into()),
        ("--initial-advertise-peer-urls", peer.into()),
        ("--initial-cluster", cluster.into()),
        // Elections in half a second, and leases of one.
        ("--heartbeat-interval", "50".into()),
        ("--election-timeout", "500".into()),
        ("--log-level", "fatal".into()),
    ];
    pairs
        .into_iter()
        .flat_map(|(flag, value)| [flag.into(), value])
        .collect()
}

fn run(arguments: &[String]) -> Child {
    Command::new("etcd")
        .args(arguments)
        // etcd reads its settings from there too.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "cannot run etcd ({error}); these tests need a real one: run `deploy/setup test`, \
                 or `apt-get install --no-install-recommends etcd-server`"
            )
        })
}
