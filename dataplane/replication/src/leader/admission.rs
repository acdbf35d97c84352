//! Whether a batch may be appended.

use super::{Leader, NotAdmitted, Role};
use crate::{
    Contacts, MonotonicMs,
    fault::{Fault, planted},
};
use talweg_types::Acks;

impl<W> Leader<W> {
    /// Whether a batch with these acks may be appended, as far as that does not
    /// depend on time; see [`Self::admit_at`].
    pub fn admit(&self, acks: Acks) -> Result<(), NotAdmitted> {
        if self.role == Role::NotLeader {
            return Err(NotAdmitted::NotLeader);
        }
        let (in_sync, needed) = (self.confirmed(), self.needed());
        let ignored = planted(Fault::MinimumIgnoredAtAppend);
        if acks == Acks::All && in_sync < needed && !ignored {
            return Err(NotAdmitted::NotEnoughReplicas { in_sync, needed });
        }
        Ok(())
    }

    /// Whether a batch with these acks may be appended now. `node` is what the
    /// node as a whole has heard, beside what this partition has.
    pub fn admit_at(
        &self,
        now: MonotonicMs,
        acks: Acks,
        node: &Contacts,
    ) -> Result<(), NotAdmitted> {
        self.admit(acks)?;
        self.quorum_contact(now, node)
    }

    /// Without a controller's word and without as many members as a majority of
    /// writes asks for, another may lead already: what is taken may be lost.
    fn quorum_contact(&self, now: MonotonicMs, node: &Contacts) -> Result<(), NotAdmitted> {
        let within = self.timings.session_ms;
        if planted(Fault::ContactIgnored) {
            return Ok(());
        }
        if self.contacts.controller_within(now, within) || node.controller_within(now, within) {
            return Ok(());
        }
        let others = self.in_sync.iter().filter(|other| **other != self.node);
        let heard = others
            .clone()
            .filter(|other| {
                self.contacts.node_within(**other, now, within)
                    || node.node_within(**other, now, within)
            })
            .count();
        let at_least = if others.count() > 0 { 2 } else { 1 };
        let heard = u32::try_from(heard + 1).unwrap_or(u32::MAX);
        let needed = self.needed().max(at_least);
        if heard < needed {
            return Err(NotAdmitted::NoQuorumContact { heard, needed });
        }
        Ok(())
    }
}
