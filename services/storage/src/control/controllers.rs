//! Which controller to talk to: the one that last answered, else each in turn,
//! or the one that a refusal points to.

use parking_lot::Mutex;
use std::time::Duration;
use talweg_kit::{
    errors::{ErrorCode, Refusal},
    net::{ChannelOptions, channel},
};
use talweg_proto::v1::error_detail::Details;
use tonic::{Status, transport::Channel};

/// Between attempts, doubled up to the second, each time somewhere between half and whole.
const BACK_OFF_MS: (u64, u64) = (50, 1_000);

/// The controllers of the configuration, and a choice.
pub struct Controllers {
    urls: Vec<String>,
    choice: Mutex<Choice>,
}

struct Choice {
    url: String,
    next: usize,
}

impl Controllers {
    /// `urls` is not empty.
    pub fn new(urls: Vec<String>) -> Self {
        let url = urls.first().cloned().unwrap_or_default();
        Self {
            urls,
            choice: Mutex::new(Choice { url, next: 1 }),
        }
    }

    /// A connection to the present choice.
    pub fn channel(&self, options: &ChannelOptions) -> Result<Channel, Refusal> {
        let url = self.choice.lock().url.clone();
        channel(&url, options).map_err(|error| Refusal::unavailable(error.to_string()))
    }

    /// The present choice did not do: goes where the refusal points, else on.
    pub fn failed(&self, status: &Status) {
        let refusal = Refusal::from_status(status);
        let mut choice = self.choice.lock();
        if let (ErrorCode::NotController, Some(Details::Leader(leader))) =
            (refusal.code, &refusal.details)
            && let Some(url) = leader.addresses.first().filter(|url| **url != choice.url)
        {
            choice.url.clone_from(url);
            return;
        }
        let count = self.urls.len().max(1);
        let next = choice.next;
        choice.next = (next + 1) % count;
        if let Some(url) = self.urls.get(next % count) {
            choice.url.clone_from(url);
        }
    }
}

/// Waits longer after each failure, with jitter, so that nodes do not come in step.
#[derive(Default)]
pub struct BackOff {
    failures: u32,
}

impl BackOff {
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    pub async fn wait(&mut self) {
        let (first, most) = BACK_OFF_MS;
        let full = first.saturating_mul(1 << self.failures.min(10)).min(most);
        self.failures += 1;
        tokio::time::sleep(Duration::from_millis(rand::random_range(full / 2..=full))).await;
    }
}
