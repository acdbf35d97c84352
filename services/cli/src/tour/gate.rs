//! A TCP relay between two nodes that can hold what passes: the network of a
//! rehearsal. Needs no privileges.
//!
//! While it is held, connections are taken and stay silent. Then what waited
//! passes, as after a short stall, or those connections are dropped with every
//! byte in them, as after a long one; new ones pass.

use std::{io, net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

const BUFFER: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
struct State {
    target: Option<SocketAddr>,
    open: bool,
    /// Connections of an earlier count are dropped.
    cuts: u64,
}

/// A relay on a port of its own; its connections end when it is dropped.
pub struct Gate {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    _relay: AbortOnDropHandle<()>,
}

impl Gate {
    /// Listens on a free loopback port; leads nowhere yet.
    ///
    /// # Errors
    /// No port could be had.
    pub async fn new() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(watch::Sender::new(State {
            target: None,
            open: true,
            cuts: 0,
        }));
        let relay = tokio::spawn(accept(listener, Arc::clone(&state)));
        Ok(Self {
            address,
            state,
            _relay: AbortOnDropHandle::new(relay),
        })
    }

    /// Where to connect to it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// New connections go there.
    pub fn lead_to(&self, target: SocketAddr) {
        self.state.send_modify(|state| state.target = Some(target));
    }

    /// Nothing more passes that was not read before, either way.
    pub fn hold(&self) {
        self.state.send_modify(|state| state.open = false);
    }

    /// What was held passes.
    pub fn release(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    /// Drops all connections with what they hold; new ones pass.
    pub fn cut(&self) {
        self.state.send_modify(|state| {
            state.open = true;
            state.cuts += 1;
        });
    }
}

async fn accept(listener: TcpListener, state: Arc<watch::Sender<State>>) {
    let mut relays = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = relays.join_next(), if !relays.is_empty() => {}
            // One that could not be taken tries again.
            Ok((near, _)) = listener.accept() => {
                relays.spawn(relay(near, state.subscribe()));
            }
        }
    }
}

/// Until either side ends, or it is cut.
async fn relay(near: TcpStream, mut state: watch::Receiver<State>) {
    let State { target, cuts, .. } = *state.borrow();
    let Some(target) = target else { return };
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    // Small frames must not wait for each other.
    if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
        return;
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let (there, back) = (state.clone(), state.clone());
    tokio::select! {
        // First, so that nothing of what is cut gets through.
        biased;
        _ = state.wait_for(|state| state.cuts != cuts) => {}
        () = pass(near_in, far_out, there, cuts) => {}
        () = pass(far_in, near_out, back, cuts) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    cuts: u64,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let bytes = match from.read(&mut buffer).await {
            Ok(bytes) if bytes > 0 => bytes,
            _ => return,
        };
        // A cut opens the gate for others in the same step: what waits here is dropped.
        let may_pass = match state
            .wait_for(|state| state.open || state.cuts != cuts)
            .await
        {
            Ok(state) => state.cuts == cuts,
            Err(_) => false,
        };
        if !may_pass || to.write_all(&buffer[..bytes]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(10);

    async fn pair(gate: &Gate, server: &TcpListener) -> (TcpStream, TcpStream) {
        let connecting = TcpStream::connect(gate.address);
        let (near, far) = tokio::join!(connecting, server.accept());
        (near.expect("connected"), far.expect("accepted").0)
    }

    /// Story: a word passes; the gate is held and the next one waits; it is held
    /// again and cut, the connection is gone with its word, and a new one passes.
    #[tokio::test]
    async fn what_is_held_waits_and_what_is_cut_never_arrives() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let gate = Gate::new().await.expect("a port");
        gate.lead_to(server.local_addr().expect("an address"));
        let (mut near, mut far) = pair(&gate, &server).await;
        let mut word = [0; 3];
        near.write_all(b"one").await.expect("sent");
        far.read_exact(&mut word).await.expect("came");
        assert_eq!(&word, b"one");

        gate.hold();
        near.write_all(b"two").await.expect("sent");
        let held = timeout(Duration::from_millis(200), far.read_exact(&mut word)).await;
        assert!(held.is_err(), "held: {held:?}");

        gate.release();
        let came = timeout(SOON, far.read_exact(&mut word)).await;
        came.expect("in time").expect("came");
        assert_eq!(&word, b"two");

        gate.hold();
        near.write_all(b"ten").await.expect("sent");
        let held = timeout(Duration::from_millis(200), far.read_exact(&mut word)).await;
        assert!(held.is_err(), "held: {held:?}");
        gate.cut();
        let mut rest = Vec::new();
        // A reset and an end are the same here: nothing came.
        let _ = timeout(SOON, far.read_to_end(&mut rest))
            .await
            .expect("ended");
        assert_eq!(rest, b"");
        let (mut near, mut far) = pair(&gate, &server).await;
        near.write_all(b"six").await.expect("sent");
        timeout(SOON, far.read_exact(&mut word))
            .await
            .expect("in time")
            .expect("came");
        assert_eq!(&word, b"six");
    }
}
