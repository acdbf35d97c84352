//! Whether anybody listens at the address of a node whose stream is gone. Only
//! a refusal proves that nobody does; a process that dies may accept for as long
//! as its sockets are being closed, so it is asked a few times.

use crate::{core::Event, handle::Message};
use std::{io::ErrorKind, time::Duration};
use talweg_types::{Incarnation, NodeId};
use tokio::{net::TcpStream, sync::mpsc, time::timeout};

const CONNECT: Duration = Duration::from_millis(500);
const PAUSES_MS: [u64; 5] = [0, 20, 80, 200, 400];

/// Beside the loop; reports a refusal to it.
pub fn spawn(
    events: mpsc::WeakSender<Message>,
    node: NodeId,
    incarnation: Incarnation,
    address: String,
) {
    tokio::spawn(async move {
        if !is_refused(&address).await {
            return;
        }
        tracing::warn!(node_id = node.0, %address, "nobody listens there: the node is dead");
        if let Some(events) = events.upgrade() {
            let event = Event::ProbeRefused { node, incarnation };
            // The term is over: the next controller looks for itself.
            let _ = events.send(Message::Node(event)).await;
        }
    });
}

/// Every attempt ends within its time; the first refusal decides.
pub async fn is_refused(address: &str) -> bool {
    let Some(target) = host_and_port(address) else {
        return false;
    };
    for pause in PAUSES_MS {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        match timeout(CONNECT, TcpStream::connect(&target)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return true,
            Ok(_) => {}
            // Nobody answers: that is silence.
            Err(_) => return false,
        }
    }
    false
}

/// "host:port" of a URL.
pub fn host_and_port(address: &str) -> Option<String> {
    let uri: tonic::transport::Uri = address.parse().ok()?;
    let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    });
    Some(format!("{}:{port}", uri.host()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_urls() {
        for (url, expected) in [
            ("http://a:7072", Some("a:7072")),
            ("http://127.0.0.1:1/", Some("127.0.0.1:1")),
            ("http://[::1]:5", Some("[::1]:5")),
            ("https://a", Some("a:443")),
            ("", None),
        ] {
            assert_eq!(host_and_port(url).as_deref(), expected, "{url}");
        }
    }

    #[tokio::test]
    async fn only_a_refusal_counts() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        assert!(!is_refused(&address).await);
        drop(listener);
        assert!(is_refused(&address).await);
        assert!(!is_refused("not a url").await);
    }
}
