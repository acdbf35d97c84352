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
    settings: Vec<(&'static str, String)>,
    env: Vec<(String, String)>,
}

impl Default for StackBuilder {
    fn default() -> Self {
        Self {
            storages: 1,
            gateways: 1,
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

    /// A setting `key=value` for one plane: "controller", "storage" or "gateway".
    #[must_use]
    pub fn set(mut self, plane: &'static str, setting: &str) -> Self {
        self.settings.push((plane, setting.into()));
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
    pub storages: Vec<Process>,
    pub gateways: Vec<Process>,
    storage_ports: Vec<u16>,
    gateway_ports: Vec<(u16, u16)>,
    controller_port: u16,
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
        let controller_port = free_port();
        let controllers = format!("controllers=http://127.0.0.1:{controller_port}");
        let mut controller = plan.process(
            "controller",
            0,
            &folder,
            vec![
                listen("grpc", controller_port),
                listen("http", free_port()),
                format!("data_dir={}", folder.join("controller").display()),
            ],
        );
        controller.start(START);
        let storage_ports: Vec<_> = (0..plan.storages).map(|_| free_port()).collect();
        let mut storages: Vec<_> = storage_ports
            .iter()
            .enumerate()
            .map(|(i, port)| {
                let data = folder.join(format!("storage-{i}"));
                plan.process(
                    "storage",
                    i,
                    &folder,
                    vec![
                        listen("grpc", *port),
                        listen("http", free_port()),
                        format!("data_dirs={}", data.display()),
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
        Self {
            controller,
            storages,
            gateways,
            storage_ports,
            gateway_ports,
            controller_port,
            folder,
            temp: Some(temp),
        }
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
        format!("http://127.0.0.1:{}", self.controller_port)
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

fn listen(plane: &str, port: u16) -> String {
    format!("{plane}=127.0.0.1:{port}")
}

impl StackBuilder {
    fn process(&self, plane: &str, i: usize, folder: &Path, own: Vec<String>) -> Process {
        let settings = self
            .settings
            .iter()
            .filter(|(p, _)| *p == plane)
            .map(|(_, s)| s.clone());
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
