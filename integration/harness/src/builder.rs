//! What a stack is made of, and how it comes up.

use crate::{
    Process, Stack,
    disk::Disk,
    free_port,
    net::{Network, Place},
    stack::Urls,
};
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
    coordinators: usize,
    /// With etcd; 0: one controller with the embedded store.
    controllers: usize,
    racks: usize,
    namespaces: bool,
    etcd_in_memory: bool,
    /// Of each storage node's own disk; 0: folders of the machine's.
    disk_bytes: u64,
    /// Plane, place in it (`None`: all), setting.
    settings: Vec<(&'static str, Option<usize>, String)>,
    env: Vec<(String, String)>,
}

impl Default for StackBuilder {
    fn default() -> Self {
        Self {
            storages: 1,
            gateways: 1,
            coordinators: 0,
            controllers: 0,
            racks: 0,
            namespaces: false,
            etcd_in_memory: false,
            disk_bytes: 0,
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

    #[must_use]
    pub fn coordinators(mut self, count: usize) -> Self {
        self.coordinators = count;
        self
    }

    /// So many controllers on a real etcd.
    #[must_use]
    pub fn controllers_on_etcd(mut self, count: usize) -> Self {
        self.controllers = count;
        self
    }

    /// Storage nodes stand in so many racks in turn: `r0`, `r1`, …
    #[must_use]
    pub fn racks(mut self, count: usize) -> Self {
        self.racks = count;
        self
    }

    /// etcd's data on a tmpfs: its flushes cost nothing.
    #[must_use]
    pub fn etcd_in_memory(mut self) -> Self {
        self.etcd_in_memory = true;
        self
    }

    /// Every process in a network namespace of its own, with links that can be
    /// cut. Needs root.
    #[must_use]
    pub fn in_namespaces(mut self) -> Self {
        self.namespaces = true;
        self
    }

    /// A disk of so many bytes for each storage node, to be filled and frozen. Needs root.
    #[must_use]
    pub fn on_disks(mut self, bytes: u64) -> Self {
        self.disk_bytes = bytes;
        self
    }

    /// A setting `key=value` for one plane: "controller", "storage", "coordinator" or "gateway".
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

    /// An environment variable for every process.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Starts everything and waits until it is ready.
    pub fn start(self) -> Stack {
        let temp = TempDir::with_prefix("talweg-test-").expect("temp folder");
        let memory = (self.etcd_in_memory && self.controllers > 0)
            .then(|| TempDir::with_prefix_in("talweg-test-", "/dev/shm").expect("a tmpfs"));
        let mut site = Site {
            folder: temp.path().to_owned(),
            network: self.namespaces.then(Network::start),
            urls: Urls::default(),
            plan: self,
        };
        let etcd_data = memory.as_ref().map_or(temp.path(), TempDir::path);
        let etcd = (site.plan.controllers > 0).then(|| site.etcd(&etcd_data.join("etcd")));
        let mut controllers = site.controllers(etcd.as_ref().map(|(_, url)| url.as_str()));
        let (disks, storage_data) = site.disks();
        let storages = site.storages(&storage_data);
        let coordinators = site.coordinators();
        let gateways = site.gateways();
        Stack {
            controller: controllers.remove(0),
            standbys: controllers,
            etcd_url: etcd.as_ref().map(|(_, url)| url.clone()),
            etcd: etcd.map(|(process, _)| process),
            storages,
            coordinators,
            gateways,
            urls: site.urls,
            storage_data,
            disks,
            network: site.network,
            _memory: memory,
            temp: Some(temp),
        }
    }
}

/// A stack that is coming up.
struct Site {
    plan: StackBuilder,
    folder: PathBuf,
    network: Option<Network>,
    urls: Urls,
}

impl Site {
    fn place(&mut self, role: &str) -> Place {
        let network = self.network.as_mut();
        network.map_or_else(Place::loopback, |network| network.place(role))
    }

    /// A process of ours that listens at `place`.
    fn process(
        &self,
        plane: &str,
        i: usize,
        place: Place,
        ports: (u16, u16),
        own: Vec<String>,
    ) -> Process {
        let listen = [
            format!("grpc={}:{}", place.host, ports.0),
            format!("http={}:{}", place.host, ports.1),
        ];
        let settings = self.plan.settings.iter();
        let settings = settings
            .filter(|(p, only, _)| *p == plane && only.is_none_or(|only| only == i))
            .map(|(_, _, setting)| setting.clone());
        let args = listen
            .into_iter()
            .chain(own)
            .chain(settings)
            .flat_map(|setting| ["--set".to_owned(), setting])
            .collect();
        let (name, program) = (format!("{plane}-{i}"), format!("talweg-{plane}"));
        let process = Process::new(&name, &program, args, &self.folder).at(place);
        let env = self.plan.env.iter();
        env.fold(process, |p, (key, value)| p.env(key, value))
    }

    /// A port at which a process of this plane will show its metrics.
    fn scraped(&mut self, plane: &'static str) -> u16 {
        let port = free_port();
        self.urls.scraped.push((plane, port));
        port
    }

    fn controllers(&mut self, etcd: Option<&str>) -> Vec<Process> {
        let mut all = Vec::new();
        for i in 0..self.plan.controllers.max(1) {
            let place = self.place(&format!("controller-{i}"));
            let port = free_port();
            self.urls.controllers.push(url(&place, port));
            let mut own = vec![format!(
                "data_dir={}",
                self.folder.join("controller").display()
            )];
            own.extend(etcd.map(|url| format!("etcd_endpoints={url}")));
            let http = self.scraped("controller");
            let mut process = self.process("controller", i, place, (port, http), own);
            match i {
                0 => process.start(START),
                // A standby does not say that it is ready.
                _ => process.start_at(port, START),
            }
            all.push(process);
        }
        all
    }

    fn controller_setting(&self) -> String {
        format!("controllers={}", self.urls.controllers.join(","))
    }

    fn disks(&self) -> (Vec<Disk>, Vec<PathBuf>) {
        let names = (0..self.plan.storages).map(|i| format!("storage-{i}"));
        if self.plan.disk_bytes == 0 {
            return (Vec::new(), names.map(|n| self.folder.join(n)).collect());
        }
        let disks: Vec<_> = names
            .map(|name| Disk::new(&self.folder, &name, self.plan.disk_bytes))
            .collect();
        let data = disks.iter().map(|disk| disk.path().join("data")).collect();
        (disks, data)
    }

    fn storages(&mut self, data: &[PathBuf]) -> Vec<Process> {
        let mut all = Vec::new();
        for (i, data) in data.iter().enumerate() {
            let place = self.place(&format!("storage-{i}"));
            let port = free_port();
            self.urls.storages.push(url(&place, port));
            let mut own = vec![
                format!("data_dirs={}", data.display()),
                self.controller_setting(),
            ];
            own.extend(i.checked_rem(self.plan.racks).map(|r| format!("rack=r{r}")));
            let http = self.scraped("storage");
            all.push(self.process("storage", i, place, (port, http), own));
        }
        all.iter_mut().for_each(|storage| storage.start(START));
        all
    }

    fn coordinators(&mut self) -> Vec<Process> {
        let mut all = Vec::new();
        for i in 0..self.plan.coordinators {
            let name = format!("coordinator-{i}");
            let place = self.place(&name);
            let ports = (free_port(), self.scraped("coordinator"));
            self.urls.coordinators.push(url(&place, ports.0));
            let data = self.folder.join(name);
            let own = vec![
                format!("data_dir={}", data.display()),
                self.controller_setting(),
            ];
            all.push(self.process("coordinator", i, place, ports, own));
        }
        all.iter_mut()
            .for_each(|coordinator| coordinator.start(START));
        all
    }

    fn gateways(&mut self) -> Vec<Process> {
        let mut all = Vec::new();
        for i in 0..self.plan.gateways {
            let place = self.place(&format!("gateway-{i}"));
            let ports = (free_port(), self.scraped("gateway"));
            self.urls.gateways.push(url(&place, ports.0));
            self.urls.gateways_http.push(url(&place, ports.1));
            let own = vec![self.controller_setting()];
            all.push(self.process("gateway", i, place, ports, own));
        }
        all.iter_mut().for_each(|gateway| gateway.start(START));
        all
    }

    /// A real etcd with its data in `data`, and its URL.
    fn etcd(&mut self, data: &Path) -> (Process, String) {
        let program = ["/usr/bin/etcd", "/usr/local/bin/etcd"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.exists())
            .expect(
                "etcd is not installed: apt-get install etcd-server (deploy/setup test does it)",
            );
        let place = self.place("etcd");
        let client = free_port();
        let (url, peer) = (url(&place, client), url(&place, free_port()));
        let data = data.display().to_string();
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
        let mut process = Process::foreign("etcd", program, args, &self.folder).at(place);
        process.start_at(client, START);
        (process, url)
    }
}

fn url(place: &Place, port: u16) -> String {
    format!("http://{}:{port}", place.host)
}
