//! A cable between one process and a port, which can be pulled out.

use std::net::SocketAddr;
use talweg_harness::free_port;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

pub struct Link {
    port: u16,
    to: SocketAddr,
    carrying: Option<JoinHandle<()>>,
}

impl Link {
    /// To a port of this machine.
    pub async fn to(port: u16) -> Self {
        let mut link = Self {
            port: free_port(),
            to: ([127, 0, 0, 1], port).into(),
            carrying: None,
        };
        link.mend().await;
        link
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends every connection; nobody listens any more.
    pub async fn cut(&mut self) {
        if let Some(carrying) = self.carrying.take() {
            carrying.abort();
            // Cancelled: its connections are gone with it.
            let _ = carrying.await;
        }
    }

    pub async fn mend(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await;
        let (listener, to) = (listener.expect("the port is ours"), self.to);
        self.carrying = Some(tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, to));
            }
        }));
    }
}

async fn carry(mut near: TcpStream, to: SocketAddr) {
    if let Ok(mut far) = TcpStream::connect(to).await {
        // Either side may hang up.
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    }
}
