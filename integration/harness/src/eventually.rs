//! Waiting for a hope instead of sleeping.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Tries `hope` until it holds; panics with its last complaint at the deadline.
pub async fn eventually<T, F, Fut>(what: &str, deadline: Duration, mut hope: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let complaint = match hope().await {
            Ok(value) => return value,
            Err(complaint) => complaint,
        };
        assert!(
            start.elapsed() < deadline,
            "{what}: not within {deadline:?}: {complaint}"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
