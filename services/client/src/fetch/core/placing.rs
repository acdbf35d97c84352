//! Which stream serves a partition, and what each stream is granted.

use super::*;

impl FetchCore {
    /// Places what has no place, grants credit. Effects follow.
    pub fn pump(&mut self, now: u64, routes: &dyn Routes) {
        let mut updates: BTreeMap<LinkId, v1::FetchUpdate> = BTreeMap::new();
        self.follow_leaders(routes);
        self.place_near(now, routes, &mut updates);
        for partition in std::mem::take(&mut self.unplaced) {
            if self
                .parts
                .get(&partition)
                .is_some_and(|part| part.retry_at > now)
            {
                self.unplaced.insert(partition);
                continue;
            }
            match routes.route(partition) {
                Route::To(target) => self.place(partition, target, now, &mut updates),
                Route::Wait(refusal) => self.fail(partition, refusal, now),
                Route::Gone(refusal) => self.stop(partition, refusal),
            }
        }
        for (link, update) in updates {
            self.update(link, update);
        }
        self.grant(now);
    }

    /// A leader that was replaced may not know it and has nothing more to say: its
    /// readers go to the next one, which serves them as soon as its stream is open.
    fn follow_leaders(&mut self, routes: &dyn Routes) {
        if !std::mem::take(&mut self.leaders_due) || !self.config.leaders_may_lag {
            return;
        }
        for (partition, part) in &self.parts {
            let Place::On(_, target) = &part.place else {
                continue;
            };
            if let Route::To(leader) = routes.route(*partition)
                && !part.near
                && leader.node != target.node
            {
                self.unplaced.insert(*partition);
            }
        }
    }

    pub(super) fn place(
        &mut self,
        partition: TopicPartition,
        target: Target,
        now: u64,
        updates: &mut BTreeMap<LinkId, v1::FetchUpdate>,
    ) {
        let link = self.link_to(&target, now);
        let open = link
            .and_then(|link| self.sources.get(&link))
            .is_some_and(|source| source.opened);
        match link.filter(|_| open) {
            Some(link) => self.put(partition, link, target, updates),
            // Once it is open, or may be dialled again, it is asked once more.
            None => {
                self.unplaced.insert(partition);
                if let Some(part) = self.parts.get_mut(&partition) {
                    part.waits_for(&target, now);
                }
            }
        }
    }

    /// Asks for the partition on an open stream, and no more on the one before.
    pub(super) fn put(
        &mut self,
        partition: TopicPartition,
        link: LinkId,
        target: Target,
        updates: &mut BTreeMap<LinkId, v1::FetchUpdate>,
    ) {
        let token = self.token();
        let Some(part) = self.parts.get_mut(&partition) else {
            return;
        };
        let before = std::mem::replace(&mut part.place, Place::On(link, target));
        // Removals of a frame come before its additions: it may be the same stream.
        if let Place::On(old, _) = before
            && self.sources.contains_key(&old)
        {
            updates.entry(old).or_default().remove.push(part.request());
        }
        part.token = token;
        part.near = false;
        updates.entry(link).or_default().add.push(part.request());
        self.look_near(partition);
    }

    pub(super) fn link_to(&mut self, target: &Target, now: u64) -> Option<LinkId> {
        if let Some(link) = self.current.get(target) {
            return Some(*link);
        }
        if self.dials.get(target).is_some_and(|(at, _)| *at > now) {
            return None;
        }
        let id = LinkId(self.next_link);
        self.next_link += 1;
        let largest = self.largest_batch();
        let bytes = self
            .share()
            .max(largest)
            .min(limits::FETCH_CREDIT_BYTES_MAX as i64);
        let source = Source::new(id, target.clone(), bytes, now);
        let open = v1::FetchOpen {
            client_id: self.config.client_id.clone(),
            credit: Some(v1::Credit {
                bytes,
                records: source.records,
            }),
            form: self.config.form.into(),
            isolation: self.config.isolation.into(),
            rack: self.config.rack.clone(),
            ..v1::FetchOpen::default()
        };
        self.effects.push(Effect::Open(id, target.clone()));
        self.effects
            .push(Effect::Send(id, fetch_request::Frame::Open(open)));
        self.sources.insert(id, source);
        self.current.insert(target.clone(), id);
        Some(id)
    }

    pub(super) fn share(&self) -> i64 {
        let live = self
            .sources
            .values()
            .filter(|source| !source.draining)
            .count();
        self.target_bytes.max(0) / i64::try_from(live.max(1)).unwrap_or(1)
    }

    pub(super) fn grant(&mut self, now: u64) {
        if self.target_bytes <= 0 {
            return;
        }
        let (share, largest) = (self.share(), self.largest_batch());
        for source in self
            .sources
            .values_mut()
            .filter(|it| it.opened && !it.draining)
        {
            let most = share.min(limits::FETCH_CREDIT_BYTES_MAX as i64);
            if let Some((bytes, records)) = source.top_up(most, largest) {
                let credit = v1::Credit { bytes, records };
                source.said_ms = now;
                self.effects.push(Effect::Send(
                    source.id,
                    fetch_request::Frame::Credit(credit),
                ));
            }
        }
    }
}
