//! A TCP proxy before an etcd member that can stall and cut.

use std::{io, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything passes.
    Pass,
    /// Nothing passes and nothing is closed, as when a cable is out.
    Stall,
    /// Requests pass, answers do not.
    HoldAnswers,
    /// Connections are closed, new ones at once.
    Cut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    mode: Mode,
    /// Connections of an earlier epoch are closed.
    epoch: u64,
}

pub struct Proxy {
    pub address: SocketAddr,
    state: watch::Sender<State>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Before the member at `port`, passing everything.
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind");
        let address = listener.local_addr().expect("address");
        let mode = Mode::Pass;
        let state = watch::Sender::new(State { mode, epoch: 0 });
        let task = tokio::spawn(accept(listener, port, state.subscribe()));
        Self {
            address,
            state,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| {
            // A connection whose task sleeps through the cut must not outlive it.
            state.epoch += u64::from(mode == Mode::Cut);
            state.mode = mode;
        });
    }

    /// Closes the connections that there are, and lets new ones pass.
    pub fn cut_once(&self) {
        self.state.send_modify(|state| {
            state.epoch += 1;
            state.mode = Mode::Pass;
        });
    }
}

async fn accept(listener: TcpListener, port: u16, state: watch::Receiver<State>) {
    loop {
        let (near, _) = listener.accept().await.expect("accept");
        tokio::spawn(carry(near, port, state.clone()));
    }
}

async fn carry(near: TcpStream, port: u16, mut state: watch::Receiver<State>) {
    let epoch = state.borrow().epoch;
    let mut cut = state.clone();
    let both = async {
        // A stalled network completes no connection to the far side either.
        let passes = |state: &State| matches!(state.mode, Mode::Pass | Mode::HoldAnswers);
        state.wait_for(passes).await.ok()?;
        let far = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let (near_in, near_out) = near.into_split();
        let (far_in, far_out) = far.into_split();
        let passes = move |state: &State| state.epoch == epoch && passes(state);
        let requests = copy(near_in, far_out, state.clone(), passes);
        let passes = move |now: &State| now.epoch == epoch && now.mode == Mode::Pass;
        let answers = copy(far_in, near_out, state, passes);
        tokio::try_join!(requests, answers).ok()
    };
    tokio::select! {
        _ = both => {}
        _ = cut.wait_for(|now| now.mode == Mode::Cut || now.epoch != epoch) => {}
    }
}

/// Copies while `passes`; ends both directions with either.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    passes: impl Fn(&State) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        let gone = state.wait_for(|now| passes(now)).await.is_err();
        if read == 0 || gone {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&buffer[..read]).await?;
    }
}
