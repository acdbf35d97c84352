//! Which bounds each follower was last told, so that the last advance reaches it
//! although no data follows.

use super::{Bounds, FetchOpened, Leader};
use crate::SessionTag;
use talweg_types::{Incarnation, NodeId, Offset};

#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    incarnation: Incarnation,
    session: SessionTag,
    /// `None`: nothing in this session.
    bounds: Option<Bounds>,
}

impl<W> Leader<W> {
    /// What goes beside data now. `log_start` is the leader's.
    pub fn bounds(&self, log_start: Offset) -> Bounds {
        Bounds {
            high_watermark: self.watermark_is_known().then_some(self.high_watermark),
            log_start,
        }
    }

    /// The session and the bounds to send to a follower that has not been told
    /// them; `None` when it knows or does not fetch.
    pub fn owes_watermark(&self, node: NodeId, log_start: Offset) -> Option<(SessionTag, Bounds)> {
        let told = self.told.get(&node)?;
        let bounds = self.bounds(log_start);
        (told.bounds != Some(bounds)).then_some((told.session, bounds))
    }

    /// Followers that are owed something.
    pub fn owed(&self, log_start: Offset) -> impl Iterator<Item = NodeId> {
        let owed = move |node: &NodeId| self.owes_watermark(*node, log_start).is_some();
        self.told.keys().copied().filter(owed)
    }

    /// A frame of this session with these bounds was handed to the stream.
    pub fn set_told(&mut self, node: NodeId, session: SessionTag, bounds: Bounds) {
        if let Some(told) = self.told.get_mut(&node)
            && told.session == session
        {
            told.bounds = Some(bounds);
        }
    }

    /// A follower's stream has ended; nothing is owed until it opens another.
    pub fn fetch_closed(&mut self, node: NodeId, session: SessionTag) {
        if self
            .told
            .get(&node)
            .is_some_and(|told| told.session == session)
        {
            self.told.remove(&node);
        }
    }

    pub(super) fn told_opened(&mut self, opened: FetchOpened) {
        let told = Told {
            incarnation: opened.incarnation,
            session: opened.session,
            bounds: None,
        };
        let known = self.told.entry(opened.node).or_insert(told);
        if (known.incarnation, known.session) < (told.incarnation, told.session) {
            *known = told;
        }
    }
}
