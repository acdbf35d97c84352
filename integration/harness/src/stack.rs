//! The planes as real processes on one machine.

use crate::{Process, free_port};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(30);

/// What to start.
#[derive(Clone, Debug)]
pub struct StackBuilder {
    storages: usize,
    gateways: usize,
    /// With etcd; 0: one controller with the embedded store.
    controllers: usize,
    racks: usize,
    settings: Vec<(&'static str, Option<usize>, String)>,
    env: Vec<(String, String)>,
}

impl Default for StackBuilder {
    fn default() -> Self {
        Self {
            storages: 1,
            gateways: 1,
            controllers: 0,
            racks: 0,
            settings: Vec::new(),
            env: Vec::new(),
        }
    }
}

impl StackBuilder {
    #[must_use]
    pub fn storages(mut self, count: usize) -> Self {
        self.storages = count;
        self
    }

    #[must_use]
    pub fn gateways(mut self, count: usize) -> Self {
        self.gateways = count;
        self
    }

    /// So many controllers on a real etcd.
    #[must_use]
    pub fn controllers_on_etcd(mut self, count: usize) -> Self {
        self.controllers = count;
        self
    }

    /// A setting `key=value` for one plane: "controller", "storage" or "gateway".
    #[must_use]
    pub fn set(mut self, plane: &'static str, setting: &str) -> Self {
        self.settings.push((plane, None, setting.into()));
        self
    }

    /// The same for one process of a plane, by its place.
    #[must_use]
    pub fn set_one(mut self, plane: &'static str, place: usize, setting: &str) -> Self {
        self.settings.push((plane, Some(place), setting.into()));
        self
    }

    /// Storage nodes stand in so many racks in turn: `r0`, `r1`, …
    #[must_use]
    pub fn racks(mut self, count: usize) -> Self {
        self.racks = count;
        self
    }

    /// An environment variable for every process.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Starts everything and waits until it is ready.
    pub fn start(self) -> Stack {
        Stack::start(&self)
    }
}

/// One controller, storage nodes and gateways. Data and logs are kept if the
/// test fails.
pub struct Stack {
    pub controller: Process,
    /// Further controllers, with etcd.
    pub standbys: Vec<Process>,
    pub etcd: Option<Process>,
    /// URL of that etcd.
    pub etcd_url: Option<String>,
    pub storages: Vec<Process>,
    pub gateways: Vec<Process>,
    storage_ports: Vec<u16>,
    gateway_ports: Vec<(u16, u16)>,
    controller_ports: Vec<u16>,
    /// Where each process shows its metrics, by plane.
    scraped: Vec<(&'static str, u16)>,
    folder: PathBuf,
    temp: Option<TempDir>,
}

impl Stack {
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    fn start(plan: &StackBuilder) -> Self {
        let temp = TempDir::with_prefix("talweg-test-").expect("temp folder");
        let folder = temp.path().to_owned();
        let etcd = (plan.controllers > 0).then(|| etcd(&folder));
        let controller_ports: Vec<_> = (0..plan.controllers.max(1)).map(|_| free_port()).collect();
        let urls: Vec<_> = controller_ports
            .iter()
            .map(|port| format!("http://127.0.0.1:{port}"))
            .collect();
        let controllers = format!("controllers={}", urls.join(","));
        let mut scraped = Vec::new();
        let mut scrape = |plane: &'static str| {
            let port = free_port();
            scraped.push((plane, port));
            listen("http", port)
        };
        let described = controller_ports.iter().enumerate().map(|(i, port)| {
            let mut own = vec![
                listen("grpc", *port),
                scrape("controller"),
                format!("data_dir={}", folder.join("controller").display()),
            ];
            own.extend(
                etcd.as_ref()
                    .map(|(_, url)| format!("etcd_endpoints={url}")),
            );
            plan.process("controller", i, &folder, own)
        });
        let mut all: Vec<_> = described.collect();
        let mut controller = all.remove(0);
        controller.start(START);
        for (standby, port) in all.iter_mut().zip(&controller_ports[1..]) {
            standby.start_at(*port, START);
        }
        let storage_ports: Vec<_> = (0..plan.storages).map(|_| free_port()).collect();
        let mut storages: Vec<_> = storage_ports
            .iter()
            .enumerate()
            .map(|(i, port)| {
                let data = folder.join(format!("storage-{i}"));
                let rack = match plan.racks {
                    0 => String::new(),
                    racks => format!("r{}", i % racks),
                };
                plan.process(
                    "storage",
                    i,
                    &folder,
                    vec![
                        listen("grpc", *port),
                        scrape("storage"),
                        format!("data_dirs={}", data.display()),
                        format!("rack={rack}"),
                        controllers.clone(),
                    ],
                )
            })
            .collect();
        storages.iter_mut().for_each(|s| s.start(START));
        let gateway_ports: Vec<_> = (0..plan.gateways)
            .map(|_| (free_port(), free_port()))
            .collect();
        let mut gateways: Vec<_> = gateway_ports
            .iter()
            .enumerate()
            .map(|(i, (grpc, http))| {
                plan.process(
                    "gateway",
                    i,
                    &folder,
                    vec![
                        listen("grpc", *grpc),
                        listen("http", *http),
                        controllers.clone(),
                    ],
                )
            })
            .collect();
        gateways.iter_mut().for_each(|g| g.start(START));
        scraped.extend(gateway_ports.iter().map(|(_, http)| ("gateway", *http)));
        Self {
            controller,
            standbys: all,
            etcd_url: etcd.as_ref().map(|(_, url)| url.clone()),
            etcd: etcd.map(|(process, _)| process),
            storages,
            gateways,
            storage_ports,
            gateway_ports,
            controller_ports,
            scraped,
            folder,
            temp: Some(temp),
        }
    }

    /// Where each process shows its metrics: its plane and its port.
    pub fn scraped(&self) -> &[(&'static str, u16)] {
        &self.scraped
    }

    /// gRPC URL of gateway `i`.
    pub fn gateway(&self, i: usize) -> String {
        format!("http://127.0.0.1:{}", self.gateway_ports[i].0)
    }

    /// HTTP URL of gateway `i`.
    pub fn gateway_http(&self, i: usize) -> String {
        format!("http://127.0.0.1:{}", self.gateway_ports[i].1)
    }

    /// gRPC URL of storage node `i` (by its place here, not its node id).
    pub fn storage(&self, i: usize) -> String {
        format!("http://127.0.0.1:{}", self.storage_ports[i])
    }

    /// gRPC URL of the controller.
    pub fn controller(&self) -> String {
        format!("http://127.0.0.1:{}", self.controller_ports[0])
    }

    /// gRPC URLs of all controllers.
    pub fn controllers(&self) -> Vec<String> {
        let url = |port| format!("http://127.0.0.1:{port}");
        self.controller_ports.iter().map(url).collect()
    }

    /// Data folder of storage node `i`.
    pub fn storage_data(&self, i: usize) -> PathBuf {
        self.folder.join(format!("storage-{i}"))
    }

    /// Folder of everything.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// A real etcd with its data in `folder`, and its URL.
fn etcd(folder: &Path) -> (Process, String) {
    let program = ["/usr/bin/etcd", "/usr/local/bin/etcd"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists())
        .expect("etcd is not installed: apt-get install etcd-server (deploy/setup test does it)");
    let (client, peer) = (free_port(), free_port());
    let (url, peer) = (
        format!("http://127.0.0.1:{client}"),
        format!("http://127.0.0.1:{peer}"),
    );
    let data = folder.join("etcd").display().to_string();
    let args = [
        ["--name", "etcd"],
        ["--data-dir", &data],
        ["--logger", "zap"],
        ["--listen-client-urls", &url],
        ["--advertise-client-urls", &url],
        ["--listen-peer-urls", &peer],
        ["--initial-advertise-peer-urls", &peer],
        ["--initial-cluster", &format!("etcd={peer}")],
    ];
    let args = args.into_iter().flatten().map(str::to_owned).collect();
    let mut process = Process::foreign("etcd", program, args, folder);
    process.start_at(client, START);
    (process, url)
}

fn listen(plane: &str, port: u16) -> String {
    format!("{plane}=127.0.0.1:{port}")
}

impl StackBuilder {
    fn process(&self, plane: &str, i: usize, folder: &Path, own: Vec<String>) -> Process {
        let settings = self
            .settings
            .iter()
            .filter(|(p, place, _)| *p == plane && place.is_none_or(|place| place == i))
            .map(|(_, _, s)| s.clone());
        let args = own
            .into_iter()
            .chain(settings)
            .flat_map(|s| ["--set".to_owned(), s])
            .collect();
        let process = Process::new(
            &format!("{plane}-{i}"),
            &format!("talweg-{plane}"),
            args,
            folder,
        );
        self.env
            .iter()
            .fold(process, |p, (key, value)| p.env(key, value))
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(temp) = self.temp.take()
        {
            eprintln!("data and logs are kept in {}", temp.keep().display());
        }
    }
}

/// `talweg dev` as a real process.
pub struct Dev {
    pub process: Process,
    grpc: u16,
    http: u16,
    temp: Option<TempDir>,
}

impl Dev {
    pub fn start() -> Self {
        let temp = TempDir::with_prefix("talweg-dev-").expect("temp folder");
        let (grpc, http) = (free_port(), free_port());
        let args = [
            "dev".into(),
            "--data-dir".into(),
            temp.path().join("data").display().to_string(),
            "--grpc".into(),
            format!("127.0.0.1:{grpc}"),
            "--http".into(),
            format!("127.0.0.1:{http}"),
        ];
        let mut process = Process::new("dev", "talweg", args.into(), temp.path());
        process.start(START);
        Self {
            process,
            grpc,
            http,
            temp: Some(temp),
        }
    }

    /// gRPC URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// HTTP URL.
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.temp
            .as_ref()
            .expect("until dropped")
            .path()
            .join("data")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(temp) = self.temp.take()
        {
            eprintln!("data and logs are kept in {}", temp.keep().display());
        }
    }
}
