//! From one view to the next: snapshots in parts, then deltas.
//!
//! All or nothing: a snapshot counts when its last part has come; a delta that
//! does not follow the present revision is a [`Gap`], after which only a new
//! snapshot helps. A view never goes back: an older snapshot is a gap as well. What cannot be read (an id of the wrong length) is a gap too.

use super::{ClusterView, TopicView};
use std::{collections::BTreeMap, sync::Arc};
use talweg_proto::{
    controller::v1::{
        self as controller, ClusterDelta, ClusterSnapshot, watch_cluster_response::Update,
    },
    v1::Topic,
};
use talweg_types::{TopicConfig, TopicId};
use thiserror::Error;

/// The view cannot be continued: ask for a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Gap {
    #[error("delta follows revision {previous}, the view is at {at}")]
    Revision { previous: i64, at: i64 },
    #[error("delta before a whole snapshot")]
    BeforeSnapshot,
    /// From a controller that has been deposed and does not know it yet, say.
    #[error("a snapshot of revision {offered}, the view is at {at} already")]
    Back { offered: i64, at: i64 },
    #[error("an id of {0} bytes")]
    Id(usize),
}

/// A view that is being followed.
pub struct ViewUpdate {
    current: Arc<ClusterView>,
    /// Parts of a snapshot that is not whole yet.
    building: Option<ClusterView>,
    /// A snapshot was taken over since the stream began.
    whole: bool,
}

impl ViewUpdate {
    /// Begins a new stream, which begins with a snapshot; `current` is what
    /// serves until then.
    pub fn new(current: Arc<ClusterView>) -> Self {
        Self {
            current,
            building: None,
            whole: false,
        }
    }

    /// The new view, if the message made one.
    pub fn apply(&mut self, update: Update) -> Result<Option<Arc<ClusterView>>, Gap> {
        let changed = match update {
            Update::Snapshot(snapshot) => self.on_snapshot(snapshot)?,
            Update::Delta(delta) => Some(self.on_delta(delta)?),
            Update::Progress(_) => None,
        };
        if let Some(view) = &changed {
            self.current = Arc::clone(view);
        }
        Ok(changed)
    }

    fn on_snapshot(&mut self, snapshot: ClusterSnapshot) -> Result<Option<Arc<ClusterView>>, Gap> {
        if snapshot.first {
            self.building = Some(ClusterView::empty());
        }
        let building = self.building.as_mut().ok_or(Gap::BeforeSnapshot)?;
        merge(building, snapshot.view.unwrap_or_default())?;
        if !snapshot.last {
            return Ok(None);
        }
        let Some(view) = self.building.take() else {
            return Ok(None);
        };
        if view.revision < self.current.revision {
            return Err(Gap::Back {
                offered: view.revision,
                at: self.current.revision,
            });
        }
        self.whole = true;
        Ok(Some(Arc::new(keep_unchanged(view, &self.current))))
    }

    fn on_delta(&mut self, delta: ClusterDelta) -> Result<Arc<ClusterView>, Gap> {
        if !self.whole {
            return Err(Gap::BeforeSnapshot);
        }
        if delta.previous_revision != self.current.revision {
            return Err(Gap::Revision {
                previous: delta.previous_revision,
                at: self.current.revision,
            });
        }
        let mut next = ClusterView::clone(&self.current);
        for bytes in &delta.removed_topic_ids {
            let id = topic_id(bytes)?;
            if let Some(gone) = next.topics.remove(&id)
                && next.by_name.get(&gone.topic.name) == Some(&id)
            {
                next.by_name.remove(&gone.topic.name);
            }
        }
        next.nodes
            .retain(|(_, id), _| !delta.removed_node_ids.contains(id));
        merge(&mut next, delta.view.unwrap_or_default())?;
        Ok(Arc::new(next))
    }
}

fn topic_id(bytes: &[u8]) -> Result<TopicId, Gap> {
    TopicId::from_slice(bytes).ok_or(Gap::Id(bytes.len()))
}

/// Adds what `part` says to `view`. A partition may come before its topic.
fn merge(view: &mut ClusterView, part: controller::ClusterView) -> Result<(), Gap> {
    if !part.cluster_id.is_empty() {
        view.cluster_id = part.cluster_id;
    }
    view.revision = view.revision.max(part.revision);
    for topic in part.topics {
        let id = topic_id(&topic.topic_id)?;
        let entry = topic_mut(view, id);
        let old_name = std::mem::replace(&mut entry.topic, topic).name;
        entry.config = config_of(&entry.topic);
        let name = entry.topic.name.clone();
        if old_name != name && view.by_name.get(&old_name) == Some(&id) {
            view.by_name.remove(&old_name);
        }
        view.by_name.insert(name, id);
    }
    for partition in part.partitions {
        let id = topic_id(&partition.topic_id)?;
        topic_mut(view, id)
            .partitions
            .insert(partition.partition, partition);
    }
    for history in part.histories {
        let id = topic_id(&history.topic_id)?;
        topic_mut(view, id).earlier_counts = history.earlier_counts;
    }
    for node in part.nodes {
        view.nodes.insert((node.plane, node.node_id), node);
    }
    for tombstone in part.tombstones {
        let id = topic_id(&tombstone.topic_id)?;
        if tombstone.pending_nodes.is_empty() {
            view.tombstones.remove(&id);
        } else {
            view.tombstones.insert(id, tombstone.pending_nodes);
        }
    }
    Ok(())
}

fn topic_mut(view: &mut ClusterView, id: TopicId) -> &mut TopicView {
    let entry = view.topics.entry(id).or_insert_with(|| {
        Arc::new(TopicView {
            id,
            topic: Topic::default(),
            config: TopicConfig::default(),
            partitions: BTreeMap::new(),
            earlier_counts: Vec::new(),
        })
    });
    Arc::make_mut(entry)
}

/// A setting that this version does not know is left at its default: the
/// controller, which may be newer, has accepted it.
fn config_of(topic: &Topic) -> TopicConfig {
    let mut config = TopicConfig::default();
    let settings: BTreeMap<_, _> = topic.config.iter().collect();
    for (key, value) in settings {
        if let Err(error) = config.set(key, value) {
            tracing::warn!(topic = topic.name, %error, "setting ignored");
        }
    }
    config
}

/// Topics that a snapshot brings again as they were stay the same object, so
/// that followers of changes see only changes.
fn keep_unchanged(mut new: ClusterView, old: &ClusterView) -> ClusterView {
    for (id, topic) in &mut new.topics {
        if let Some(known) = old.topics.get(id).filter(|known| same(known, topic)) {
            *topic = Arc::clone(known);
        }
    }
    new
}

fn same(one: &TopicView, other: &TopicView) -> bool {
    one.topic == other.topic
        && one.partitions == other.partitions
        && one.earlier_counts == other.earlier_counts
}
