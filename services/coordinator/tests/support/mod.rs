//! What the tests share: a controller and a leader made of a few tables, and a
//! gateway's side of the stream.

#![allow(dead_code)]

pub mod gateway;
pub mod world;

use std::{future::Future, time::Duration};

/// Longer than anything takes, shorter than a test may hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Until `hope` gives something.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut hope: impl FnMut() -> F,
) -> T {
    let hoping = async {
        loop {
            if let Some(found) = hope().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, hoping).await;
    found.unwrap_or_else(|_| panic!("never: {what}"))
}
