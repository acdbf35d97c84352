//! The durable state of one group. It changes by [`GroupState::apply`] alone:
//! serving, loading and a shadow replay walk the same path.

use crate::{
    Committed, Current, Failures, GroupMeta, Key, MemberMeta, Record, Value,
    check::{Broken, check_state},
    hash::stable_hash,
};
use std::collections::{BTreeMap, BTreeSet};
use talweg_types::{MemberId, TopicId, TopicPartition};
use thiserror::Error;

/// One value a key, and what is derived from them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct GroupState {
    pub(crate) meta: Option<GroupMeta>,
    pub(crate) members: BTreeMap<MemberId, MemberMeta>,
    pub(crate) targets: BTreeMap<MemberId, BTreeSet<TopicPartition>>,
    pub(crate) currents: BTreeMap<MemberId, Current>,
    pub(crate) offsets: BTreeMap<TopicPartition, Committed>,
    pub(crate) failures: BTreeMap<TopicPartition, Failures>,
    /// Derived from `currents`.
    pub(crate) owners: BTreeMap<TopicPartition, MemberId>,
    /// Derived from `targets`.
    pub(crate) heirs: BTreeMap<TopicPartition, MemberId>,
    /// Derived from `members`.
    pub(crate) instances: BTreeMap<String, MemberId>,
}

/// Why a group was not loaded. Nothing of it is served then.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    #[error("the value under {0:?} is of another kind")]
    WrongValue(Key),
    #[error("the records contradict each other: {0}")]
    Broken(#[from] Broken),
}

impl GroupState {
    /// All records of a group in log order, compacted or not; all or nothing.
    pub fn load(records: impl IntoIterator<Item = Record>) -> Result<Self, LoadError> {
        let mut state = Self::default();
        for record in records {
            if !fits(&record) {
                return Err(LoadError::WrongValue(record.key));
            }
            state.apply(record);
        }
        check_state(&state)?;
        Ok(state)
    }

    /// Puts a record in force and returns the key's earlier value, which undoes
    /// it. Total: records of one append may contradict each other until all of
    /// them are applied; a value under a key of another kind is a tombstone.
    pub fn apply(&mut self, record: Record) -> Option<Value> {
        let Record { key, value } = record;
        match (key, value) {
            (Key::Group, value) => {
                let new = value.and_then(Value::group);
                std::mem::replace(&mut self.meta, new).map(Value::Group)
            }
            (Key::Member(id), value) => self.apply_member(id, value.and_then(Value::member)),
            (Key::Target(id), value) => {
                let new = value.and_then(Value::target);
                let old = swap(&mut self.targets, id, new);
                let now = self.targets.get(&id);
                reindex(
                    &mut self.heirs,
                    id,
                    old.iter().flatten(),
                    now.into_iter().flatten(),
                );
                old.map(Value::Target)
            }
            (Key::Current(id), value) => {
                let new = value.and_then(Value::current);
                let old = swap(&mut self.currents, id, new);
                let now = self.currents.get(&id);
                reindex(
                    &mut self.owners,
                    id,
                    old.iter().flat_map(|current| current.owned.keys()),
                    now.into_iter().flat_map(|current| current.owned.keys()),
                );
                old.map(Value::Current)
            }
            (Key::Offset(at), value) => {
                swap(&mut self.offsets, at, value.and_then(Value::offset)).map(Value::Offset)
            }
            (Key::Failures(at), value) => {
                swap(&mut self.failures, at, value.and_then(Value::failures)).map(Value::Failures)
            }
        }
    }

    fn apply_member(&mut self, id: MemberId, new: Option<MemberMeta>) -> Option<Value> {
        let old = swap(&mut self.members, id, new);
        if let Some(instance) = old.as_ref().and_then(|meta| meta.instance_id.as_ref())
            && self.instances.get(instance) == Some(&id)
        {
            self.instances.remove(instance);
        }
        let now = self.members.get(&id);
        if let Some(instance) = now.and_then(|meta| meta.instance_id.clone()) {
            self.instances.insert(instance, id);
        }
        old.map(|meta| Value::Member(Box::new(meta)))
    }

    /// The same for the same records, in every process of one build.
    pub fn state_hash(&self) -> u64 {
        stable_hash(self)
    }

    /// Nothing is left; the group need not be kept.
    pub fn is_gone(&self) -> bool {
        self.meta.is_none() && self.members.is_empty() && self.offsets.is_empty()
    }

    /// None before the first member or commit.
    pub fn meta(&self) -> Option<&GroupMeta> {
        self.meta.as_ref()
    }

    pub fn members(&self) -> &BTreeMap<MemberId, MemberMeta> {
        &self.members
    }

    pub fn current(&self, member: MemberId) -> Option<&Current> {
        self.currents.get(&member)
    }

    pub fn target(&self, member: MemberId) -> Option<&BTreeSet<TopicPartition>> {
        self.targets.get(&member)
    }

    pub fn owner(&self, at: TopicPartition) -> Option<MemberId> {
        self.owners.get(&at).copied()
    }

    /// Topics of which offsets or failures are stored, each at least once.
    pub fn topics_stored(&self) -> impl Iterator<Item = TopicId> + '_ {
        let stored = self.offsets.keys().chain(self.failures.keys());
        let mut last = None;
        let next = stored.map(|at| at.topic_id);
        next.filter(move |id| last.replace(*id) != Some(*id))
    }

    pub fn offsets(&self) -> &BTreeMap<TopicPartition, Committed> {
        &self.offsets
    }

    pub fn failures(&self) -> &BTreeMap<TopicPartition, Failures> {
        &self.failures
    }

    /// All that is stored, one record a key: what compaction would leave.
    pub fn snapshot(&self) -> Vec<Record> {
        let group = self.meta.map(|meta| (Key::Group, Value::Group(meta)));
        let members = self.members.iter();
        let members =
            members.map(|(id, meta)| (Key::Member(*id), Value::Member(Box::new(meta.clone()))));
        let targets = self.targets.iter();
        let targets = targets.map(|(id, target)| (Key::Target(*id), Value::Target(target.clone())));
        let currents = self.currents.iter();
        let currents =
            currents.map(|(id, current)| (Key::Current(*id), Value::Current(current.clone())));
        let offsets = self.offsets.iter();
        let offsets = offsets.map(|(at, stored)| (Key::Offset(*at), Value::Offset(stored.clone())));
        let failures = self.failures.iter();
        let failures = failures.map(|(at, count)| (Key::Failures(*at), Value::Failures(*count)));
        let all = group
            .into_iter()
            .chain(members)
            .chain(targets)
            .chain(currents);
        all.chain(offsets)
            .chain(failures)
            .map(|(key, value)| Record {
                key,
                value: Some(value),
            })
            .collect()
    }
}

fn fits(record: &Record) -> bool {
    match (&record.key, &record.value) {
        (_, None)
        | (Key::Group, Some(Value::Group(_)))
        | (Key::Member(_), Some(Value::Member(_)))
        | (Key::Target(_), Some(Value::Target(_)))
        | (Key::Current(_), Some(Value::Current(_)))
        | (Key::Offset(_), Some(Value::Offset(_)))
        | (Key::Failures(_), Some(Value::Failures(_))) => true,
        (
            Key::Group
            | Key::Member(_)
            | Key::Target(_)
            | Key::Current(_)
            | Key::Offset(_)
            | Key::Failures(_),
            Some(_),
        ) => false,
    }
}

fn swap<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, new: Option<V>) -> Option<V> {
    match new {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

/// Moves an index from a member's earlier partitions to its present ones. An
/// entry that another member of the same append took over stays that member's.
fn reindex<'a>(
    index: &mut BTreeMap<TopicPartition, MemberId>,
    id: MemberId,
    old: impl Iterator<Item = &'a TopicPartition>,
    now: impl Iterator<Item = &'a TopicPartition>,
) {
    for at in old {
        if index.get(at) == Some(&id) {
            index.remove(at);
        }
    }
    for at in now {
        index.insert(*at, id);
    }
}

macro_rules! take {
    ($($name:ident: $kind:ident($inner:ty)),+) => {
        impl Value {
            $(fn $name(self) -> Option<$inner> {
                match self {
                    Self::$kind(value) => Some(value.into()),
                    _ => None,
                }
            })+
        }
    };
}
take! {
    group: Group(GroupMeta), target: Target(BTreeSet<TopicPartition>), current: Current(Current),
    offset: Offset(Committed), failures: Failures(Failures)
}

impl Value {
    fn member(self) -> Option<MemberMeta> {
        match self {
            Self::Member(meta) => Some(*meta),
            _ => None,
        }
    }
}
