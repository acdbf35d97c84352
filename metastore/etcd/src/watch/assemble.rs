//! From etcd's responses to complete revisions, each once and in order. Pure.

use std::iter::Peekable;
use talweg_metastore::{Event, KeyRange, Revision, WatchItem};

/// One change of one key of the namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub revision: Revision,
    pub event: Event,
}

pub(crate) struct Assembler {
    range: KeyRange,
    /// Everything below has been handed out or lies outside the range.
    next: Revision,
    /// Changes of the newest revision of a response whose next fragment is due.
    partial: Vec<Change>,
    /// The newest revision that etcd has named.
    newest: Revision,
    /// The revision of the last progress.
    said: Revision,
}

/// etcd has sent a revision after a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfOrder {
    pub revision: Revision,
    pub after: Revision,
}

impl Assembler {
    /// From `from` on; revision 0 is before the first one.
    pub fn new(range: KeyRange, from: Revision) -> Self {
        Self {
            range,
            next: from.max(Revision::FIRST),
            partial: Vec::new(),
            newest: Revision::NONE,
            said: Revision::NONE,
        }
    }

    /// Where to watch from if the connection breaks now.
    pub fn next(&self) -> Revision {
        self.next
    }

    /// The newest revision that etcd has named in a header.
    pub fn saw(&mut self, newest: Revision) {
        self.newest = self.newest.max(newest);
    }

    /// Fragments of a connection that is gone never become complete.
    pub fn disconnected(&mut self) {
        self.partial.clear();
    }

    /// Takes one response. With `fragment` more of it follows, and its newest
    /// revision may not be complete.
    pub fn accept(
        &mut self,
        changes: Vec<Change>,
        fragment: bool,
    ) -> Result<Vec<WatchItem>, OutOfOrder> {
        let mut all = std::mem::take(&mut self.partial);
        all.extend(changes);
        if let Some(pair) = all.windows(2).find(|p| p[0].revision > p[1].revision) {
            let (after, revision) = (pair[0].revision, pair[1].revision);
            return Err(OutOfOrder { revision, after });
        }
        if fragment {
            let newest = all.last().map(|change| change.revision);
            let complete = all.partition_point(|c| Some(c.revision) < newest);
            self.partial = all.split_off(complete);
        }
        let mut items = Vec::new();
        let mut rest = all.into_iter().peekable();
        while let Some(first) = rest.peek().map(|change| change.revision) {
            let events = take_revision(&mut rest, first);
            items.extend(self.complete(first, events));
        }
        Ok(items)
    }

    /// All changes of one revision; nothing if it was seen, or none is in the range.
    fn complete(&mut self, revision: Revision, events: Vec<Event>) -> Option<WatchItem> {
        if revision < self.next {
            return None;
        }
        self.next = revision.next();
        self.saw(revision);
        let inside = |event: &Event| self.range.contains(event.key());
        let events: Vec<_> = events.into_iter().filter(inside).collect();
        (!events.is_empty()).then_some(WatchItem::Events { revision, events })
    }

    /// etcd says, in order with the events, that there are no more up to `revision`.
    pub fn proven(&mut self, revision: Revision) {
        self.next = self.next.max(revision.next());
        self.saw(revision);
    }

    /// What has certainly been delivered; never a revision that is not there yet.
    pub fn progress(&mut self) -> WatchItem {
        let delivered = Revision(self.next.0 - 1).min(self.newest);
        self.said = self.said.max(delivered);
        WatchItem::Progress {
            revision: self.said,
        }
    }
}

fn take_revision(
    changes: &mut Peekable<impl Iterator<Item = Change>>,
    revision: Revision,
) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(change) = changes.next_if(|change| change.revision == revision) {
        events.push(change.event);
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64, key: &'static str) -> Change {
        let revision = Revision(revision);
        let key = key.into();
        Change {
            revision,
            event: Event::Delete { key, revision },
        }
    }

    fn shown(items: Vec<WatchItem>) -> Vec<(u64, usize)> {
        items
            .into_iter()
            .map(|item| match item {
                WatchItem::Events { revision, events } => (revision.0, events.len()),
                WatchItem::Progress { revision } => (revision.0, 0),
            })
            .collect()
    }

    fn from(revision: u64) -> Assembler {
        Assembler::new(KeyRange::prefix(b"k"), Revision(revision))
    }

    #[test]
    fn one_response_may_hold_many_revisions() {
        let mut changes = from(5);
        let items = changes.accept(
            vec![change(5, "k1"), change(5, "k2"), change(7, "k1")],
            false,
        );
        assert_eq!(shown(items.expect("in order")), [(5, 2), (7, 1)]);
        assert_eq!(changes.next(), Revision(8));
    }

    #[test]
    fn a_revision_is_handed_out_with_its_last_fragment() {
        let mut changes = from(5);
        let first = changes.accept(vec![change(5, "k1"), change(6, "k1")], true);
        assert_eq!(shown(first.expect("in order")), [(5, 1)]);
        assert_eq!(changes.next(), Revision(6));
        let second = changes.accept(vec![change(6, "k2")], true);
        assert_eq!(shown(second.expect("in order")), []);
        let last = changes.accept(vec![change(6, "k3")], false);
        assert_eq!(shown(last.expect("in order")), [(6, 3)]);
    }

    #[test]
    fn a_break_between_fragments_loses_nothing_and_repeats_nothing() {
        let mut changes = from(5);
        let first = changes.accept(vec![change(5, "k1"), change(6, "k1")], true);
        assert_eq!(shown(first.expect("in order")), [(5, 1)]);
        changes.disconnected();
        let again = vec![change(5, "k1"), change(6, "k1"), change(6, "k2")];
        let items = changes.accept(again, false).expect("in order");
        assert_eq!(shown(items), [(6, 2)]);
    }

    #[test]
    fn what_is_outside_the_range_moves_progress_only() {
        let mut changes = from(5);
        let items = changes.accept(vec![change(5, "a"), change(9, "z")], false);
        assert_eq!(shown(items.expect("in order")), []);
        assert_eq!(shown(vec![changes.progress()]), [(9, 0)]);
    }

    #[test]
    fn progress_names_no_revision_that_is_not_there_and_never_falls() {
        let mut changes = from(100);
        changes.saw(Revision(40));
        assert_eq!(shown(vec![changes.progress()]), [(40, 0)]);
        changes.saw(Revision(30));
        assert_eq!(shown(vec![changes.progress()]), [(40, 0)]);
        changes.saw(Revision(200));
        assert_eq!(shown(vec![changes.progress()]), [(99, 0)]);
        changes.proven(Revision(150));
        assert_eq!(changes.next(), Revision(151));
    }

    #[test]
    fn an_earlier_revision_after_a_later_one_is_refused() {
        let mut changes = from(1);
        let mixed = changes.accept(vec![change(6, "k"), change(5, "k")], false);
        let expected = OutOfOrder {
            revision: Revision(5),
            after: Revision(6),
        };
        assert_eq!(mixed, Err(expected));
    }
}
