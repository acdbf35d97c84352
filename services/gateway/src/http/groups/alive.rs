//! Signs of life of a member that waits for records: its session may be as short as
//! the wait.

use crate::http::reply::Failure;
use std::{future::Future, time::Duration};
use talweg_client::Refusal;
use tokio::time::{MissedTickBehavior, interval};

/// Works; `sign` says every `every` that the member lives. Ends early with the refusal
/// if the group has no such member any more; a coordinator that is out of reach for a
/// while is asked again with the next sign.
pub async fn alive_while<T, S: Future<Output = Result<(), Refusal>>>(
    every: Duration,
    sign: impl Fn() -> S,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let signs = async {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once, and the member has just been heard.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match sign().await {
                Err(refusal) if !refusal.is_retriable() => return refusal,
                _ => {}
            }
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        refusal = signs => Err(refusal.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use talweg_kit::errors::ErrorCode;
    use tokio::sync::Notify;

    const SHORT: Duration = Duration::from_millis(10);

    /// Story: the wait is longer than the session. The member is heard again and again
    /// meanwhile, also after a coordinator that did not answer once.
    #[tokio::test]
    async fn a_long_wait_says_again_and_again_that_the_member_lives() {
        let (heard, more) = (Cell::new(0), Notify::new());
        let sign = || async {
            heard.set(heard.get() + 1);
            more.notify_one();
            match heard.get() {
                1 => Err(Refusal::unavailable("on its way elsewhere")),
                _ => Ok(()),
            }
        };
        let wait = async {
            while heard.get() < 3 {
                more.notified().await;
            }
            Ok("records")
        };
        let done = alive_while(SHORT, sign, wait).await;
        assert_eq!(done.ok(), Some("records"));
    }

    /// Story: the member was taken over meanwhile. It hears so at once.
    #[tokio::test]
    async fn who_is_out_waits_no_longer() {
        let sign = || async { Err(Refusal::new(ErrorCode::Fenced, "another has it")) };
        let wait = std::future::pending::<Result<(), Failure>>();
        assert!(alive_while(SHORT, sign, wait).await.is_err());
    }
}
