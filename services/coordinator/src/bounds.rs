//! The bounds that commits are checked against. What lies within those that are
//! cached is taken; before anything is refused the leader is asked.

use crate::{leaders, node::Node};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use talweg_group::Bounds;
use talweg_kit::errors::Refusal;
use talweg_proto::v1::OffsetAnswer;
use talweg_types::{Offset, TopicPartition};

/// Partitions remembered; then it begins anew.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Default)]
pub struct BoundsCache {
    known: Mutex<BTreeMap<TopicPartition, (Offset, Offset)>>,
}

impl BoundsCache {
    /// The cached bounds, if `offset` lies within them.
    pub fn within(&self, at: TopicPartition, offset: Offset) -> Option<Bounds> {
        let (log_start, high_watermark) = *self.known.lock().get(&at)?;
        (log_start..=high_watermark)
            .contains(&offset)
            .then_some(Bounds::Log {
                log_start,
                high_watermark,
            })
    }

    /// Asks the leaders.
    pub async fn refresh(
        &self,
        node: &Node,
        partitions: BTreeSet<TopicPartition>,
    ) -> BTreeMap<TopicPartition, Result<Bounds, Refusal>> {
        let answers = leaders::offsets(node, partitions, None).await;
        let mut known = self.known.lock();
        if known.len() + answers.len() > REMEMBERED_MAX {
            known.clear();
        }
        let mut found = BTreeMap::new();
        for (at, answer) in answers {
            let bounds = answer.and_then(|answer| read(&answer));
            if let Ok(bounds) = &bounds {
                known.insert(at, *bounds);
            }
            let bounds = bounds.map(|(log_start, high_watermark)| Bounds::Log {
                log_start,
                high_watermark,
            });
            found.insert(at, bounds);
        }
        found
    }
}

fn read(answer: &OffsetAnswer) -> Result<(Offset, Offset), Refusal> {
    let bounds = answer.bounds.as_ref();
    let bounds = bounds.ok_or_else(|| Refusal::internal("the leader answered without bounds"))?;
    Ok((
        Offset(bounds.log_start_offset),
        Offset(bounds.high_watermark),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use talweg_types::{PartitionIndex, TopicId};

    #[test]
    fn only_what_lies_within_is_taken_unasked() {
        let cache = BoundsCache::default();
        let at = TopicPartition {
            topic_id: TopicId::NIL,
            partition: PartitionIndex(0),
        };
        assert_eq!(cache.within(at, Offset(5)), None);
        cache.known.lock().insert(at, (Offset(5), Offset(9)));
        for (offset, taken) in [(4, false), (5, true), (9, true), (10, false)] {
            assert_eq!(
                cache.within(at, Offset(offset)).is_some(),
                taken,
                "{offset}"
            );
        }
    }
}
