//! What a coordinator says unasked to members of this gateway. Views replace
//! each other, so a mailbox holds one of each kind and never overflows.

use super::member_bytes;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};
use talweg_proto::coordinator::v1::{MemberRemoved, MemberView, RemovalReason};
use talweg_types::MemberId;
use tokio::sync::Notify;

/// What has come for one member since it was last taken.
#[derive(Default, Debug)]
pub struct Post {
    pub view: Option<MemberView>,
    pub removed: Option<MemberRemoved>,
    /// The coordinator may have forgotten that the stream lives: say so.
    pub nudged: bool,
}

impl Post {
    fn is_empty(&self) -> bool {
        self.view.is_none() && self.removed.is_none() && !self.nudged
    }
}

/// One member's.
#[derive(Default)]
pub struct Mailbox {
    post: Mutex<Post>,
    arrived: Notify,
}

impl Mailbox {
    fn put(&self, change: impl FnOnce(&mut Post)) {
        change(&mut self.post.lock());
        self.arrived.notify_one();
    }

    /// Waits until something has come. Dropping the future loses nothing.
    pub async fn take(&self) -> Post {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut post = self.post.lock();
                if !post.is_empty() {
                    return std::mem::take(&mut *post);
                }
            }
            arrived.await;
        }
    }
}

type Name = (String, Bytes);

/// All members of this gateway.
#[derive(Default)]
pub struct Mailboxes {
    boxes: Mutex<HashMap<Name, Arc<Mailbox>>>,
}

/// A member's place, while its stream lives.
pub struct Registered {
    mailboxes: Arc<Mailboxes>,
    name: Name,
    mailbox: Arc<Mailbox>,
}

impl Registered {
    /// What comes for it.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut boxes = self.mailboxes.boxes.lock();
        // A later stream of the same member has taken the place.
        let ours = boxes.get(&self.name);
        if ours.is_some_and(|it| Arc::ptr_eq(it, &self.mailbox)) {
            boxes.remove(&self.name);
        }
    }
}

impl Mailboxes {
    pub(super) fn register(this: &Arc<Self>, group: &str, member: MemberId) -> Registered {
        let name = (group.to_owned(), member_bytes(member));
        let mailbox = Arc::<Mailbox>::default();
        let earlier = this.boxes.lock().insert(name.clone(), Arc::clone(&mailbox));
        if let Some(earlier) = earlier {
            let removed = MemberRemoved {
                member_id: name.1.clone(),
                reason: RemovalReason::Replaced.into(),
                replaced_by: name.1.clone(),
            };
            earlier.put(|post| post.removed = Some(removed));
        }
        Registered {
            mailboxes: Arc::clone(this),
            name,
            mailbox,
        }
    }

    fn find(&self, group: &str, member: &Bytes) -> Option<Arc<Mailbox>> {
        let name = (group.to_owned(), member.clone());
        self.boxes.lock().get(&name).cloned()
    }

    pub(super) fn view(&self, group: &str, view: MemberView) {
        if let Some(mailbox) = self.find(group, &view.member_id) {
            let order = |view: &MemberView| (view.shard_epoch, view.sequence);
            mailbox.put(|post| {
                let newer = post
                    .view
                    .as_ref()
                    .is_none_or(|it| order(it) <= order(&view));
                if newer {
                    post.view = Some(view);
                }
            });
        }
    }

    pub(super) fn removed(&self, group: &str, removed: MemberRemoved) {
        if let Some(mailbox) = self.find(group, &removed.member_id) {
            mailbox.put(|post| post.removed = Some(removed));
        }
    }

    /// A coordinator has gone or gives shards up: members say that they live.
    pub(super) fn nudge_all(&self) {
        let all: Vec<_> = self.boxes.lock().values().cloned().collect();
        for mailbox in all {
            mailbox.put(|post| post.nudged = true);
        }
    }
}
