//! The processes of a story: a controller with embedded metadata, three storage
//! nodes whose replication can be held, a gateway.

use super::Gate;
use crate::failure::Failure;
use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use talweg_kit::errors::{ErrorCode, Refusal};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

const START: Duration = Duration::from_secs(30);
/// Lines of a log that are shown when its process does not start.
const LOG_LINES: usize = 15;

/// A process that was started, killed when dropped.
pub struct Plane {
    program: PathBuf,
    settings: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    grpc: SocketAddr,
}

impl Plane {
    /// Starts `talweg-<plane>` and waits until it is ready; its log is
    /// `<dir>/<name>.log`.
    async fn start(plane: &str, name: &str, dir: &Path, own: &[String]) -> Result<Self, Failure> {
        let ports = ["grpc", "http"].map(|port| format!("{port}=127.0.0.1:0"));
        let mut started = Self {
            program: beside_this(&format!("talweg-{plane}"))?,
            settings: ports.iter().chain(own).cloned().collect(),
            log: dir.join(format!("{name}.log")),
            child: None,
            grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        started.again().await?;
        Ok(started)
    }

    /// Starts it anew, on other ports.
    pub async fn again(&mut self) -> Result<(), Failure> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(|error| Failure::file(&self.log, &error))?;
        let mut child = Command::new(&self.program)
            .args(self.settings.iter().flat_map(|setting| ["--set", setting]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Failure::file(&self.program, &error))?;
        let stdout = child.stdout.take();
        self.child = Some(child);
        let ready = async { ready_address(stdout?).await };
        let Ok(Some(grpc)) = timeout(START, ready).await else {
            let program = self.program.display();
            let message = format!("{program} did not become ready\n{}", self.log_tail());
            return Err(Refusal::new(ErrorCode::TimedOut, message).into());
        };
        self.grpc = grpc;
        Ok(())
    }

    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// SIGKILL; returns when it is gone.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        match self.child.take() {
            Some(mut child) => child.kill().await.map_err(|e| Failure::local("kill", &e)),
            None => Ok(()),
        }
    }

    /// All that it has logged, over its restarts.
    fn log(&self) -> String {
        // One that is not there has said nothing.
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

/// Everything that runs.
pub struct Planes {
    /// Node ids 1, 2 and 3, in this order.
    pub nodes: [Plane; 3],
    pub gateway: Plane,
    /// Through it n2 fetches from n1.
    pub second: Gate,
    /// Through them n3 fetches from n1 and n2.
    pub third: [Gate; 2],
    _controller: Plane,
}

impl Planes {
    /// Starts everything, with data and logs in `dir`.
    pub async fn start(dir: &Path) -> Result<Self, Failure> {
        let data = |name: &str| dir.join(name).display().to_string();
        let controller = [format!("data_dir={}", data("controller"))];
        let controller = Plane::start("controller", "controller", dir, &controller).await?;
        let controllers = format!("controllers={}", controller.url());
        let gate = || async { Gate::new().await.map_err(|e| Failure::local("a port", &e)) };
        let (second, third) = (gate().await?, [gate().await?, gate().await?]);
        // Ids are given out in the order of registration.
        let node = async |id: u32, via: String| {
            let name = format!("n{id}");
            let own = [
                controllers.clone(),
                format!("data_dirs={}", data(&name)),
                format!("replicate_via={via}"),
            ];
            Plane::start("storage", &name, dir, &own).await
        };
        let n1 = node(1, String::new()).await?;
        second.lead_to(n1.grpc());
        third[0].lead_to(n1.grpc());
        let n2 = node(2, format!("1={}", second.url())).await?;
        third[1].lead_to(n2.grpc());
        let via = format!("1={},2={}", third[0].url(), third[1].url());
        let n3 = node(3, via).await?;
        let gateway = Plane::start(
            "gateway",
            "gateway",
            dir,
            std::slice::from_ref(&controllers),
        )
        .await?;
        Ok(Self {
            nodes: [n1, n2, n3],
            gateway,
            second,
            third,
            _controller: controller,
        })
    }
}

/// Our programs lie in one folder.
fn beside_this(name: &str) -> Result<PathBuf, Failure> {
    let this = std::env::current_exe().map_err(|error| Failure::local("this program", &error))?;
    let path = this.with_file_name(name);
    match path.exists() {
        true => Ok(path),
        false => {
            let why = format!(
                "{} is missing; the story needs it (make build)",
                path.display()
            );
            Err(Refusal::new(ErrorCode::InvalidArgument, why).into())
        }
    }
}

/// The gRPC address in the ready line. Reads on behind it, so that the process
/// never blocks on its output.
async fn ready_address(stdout: ChildStdout) -> Option<SocketAddr> {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(address) = address_in(&line) {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Some(address);
        }
    }
    None
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(" ready ")?;
    let mut words = rest.split_whitespace();
    words.find_map(|word| word.strip_prefix("grpc=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_stands_in_the_ready_line() {
        let line = "talweg-storage ready grpc=127.0.0.1:4711 http=127.0.0.1:4712 node_id=1";
        assert_eq!(address_in(line), Some(([127, 0, 0, 1], 4711).into()));
        assert_eq!(address_in("talweg-storage starts grpc=127.0.0.1:1"), None);
    }
}
