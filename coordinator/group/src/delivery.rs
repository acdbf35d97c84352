//! What a count of lost members means for the next record.

use crate::{DeadLetterPolicy, Delivery, Failures};

/// From this many losses on, records are sent one by one.
const ONE_BY_ONE_FROM: u32 = 2;

pub(crate) fn delivery(failures: Option<&Failures>, policy: DeadLetterPolicy) -> Delivery {
    let Some(failures) = failures else {
        return Delivery::Normal;
    };
    let attempts = failures.count();
    let reason = failures.last;
    if attempts >= policy.attempts {
        return if policy.dead_letters {
            Delivery::DeadLetter { attempts, reason }
        } else {
            Delivery::Paused { attempts, reason }
        };
    }
    if attempts >= ONE_BY_ONE_FROM {
        Delivery::OneByOne
    } else {
        Delivery::Normal
    }
}
