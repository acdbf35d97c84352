//! What always holds after a whole step or a whole load.

use crate::{Current, GroupState};
use std::collections::BTreeMap;
use talweg_types::{MemberId, TopicPartition};
use thiserror::Error;

/// The broken invariant.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Broken {
    #[error("{0} is owned by more than one member")]
    TwoOwners(TopicPartition),
    #[error("{0} is meant for more than one member")]
    TwoHeirs(TopicPartition),
    #[error("member {0} lacks one of its records, or one is left behind")]
    MemberRecords(MemberId),
    #[error("there are members, but no group record, or one that says it is empty")]
    GroupRecord,
    #[error("the epochs of member {0} are out of order")]
    MemberEpochs(MemberId),
    #[error("the target epoch is above the group epoch")]
    TargetEpoch,
    #[error("an instance id has two members, or a look-up is stale")]
    Instances,
    #[error("member {0} keeps {1}, which is meant for another, and was not asked to give it up")]
    NotRevoked(MemberId, TopicPartition),
    #[error("{0} is free, but was not given to its heir")]
    NotGiven(TopicPartition),
    #[error("failures at {0} are counted for an offset that is not the next")]
    StaleFailures(TopicPartition),
    #[error("sessions and members differ")]
    Sessions,
}

/// Checks a whole durable state.
pub(crate) fn check_state(state: &GroupState) -> Result<(), Broken> {
    check_members(state)?;
    check_ownership(state)?;
    for (at, failures) in &state.failures {
        if failures.next != state.offsets.get(at).map(|stored| stored.offset) {
            return Err(Broken::StaleFailures(*at));
        }
    }
    Ok(())
}

fn check_members(state: &GroupState) -> Result<(), Broken> {
    let Some(meta) = &state.meta else {
        let bare =
            state.members.is_empty() && state.currents.is_empty() && state.targets.is_empty();
        return if bare {
            Ok(())
        } else {
            Err(Broken::GroupRecord)
        };
    };
    if meta.empty_since.is_none() == state.members.is_empty() {
        return Err(Broken::GroupRecord);
    }
    if meta.target_epoch > meta.group_epoch {
        return Err(Broken::TargetEpoch);
    }
    let ids = state.members.keys();
    let all = ids.chain(state.currents.keys()).chain(state.targets.keys());
    for id in all {
        let Some(current) = state.currents.get(id) else {
            return Err(Broken::MemberRecords(*id));
        };
        if !state.members.contains_key(id) || !state.targets.contains_key(id) {
            return Err(Broken::MemberRecords(*id));
        }
        if current.member_epoch > meta.group_epoch || !epochs_in_order(current) {
            return Err(Broken::MemberEpochs(*id));
        }
    }
    let mut instances = BTreeMap::new();
    for (id, member) in &state.members {
        if let Some(instance) = &member.instance_id
            && instances.insert(instance.clone(), *id).is_some()
        {
            return Err(Broken::Instances);
        }
    }
    if instances != state.instances {
        return Err(Broken::Instances);
    }
    Ok(())
}

fn epochs_in_order(current: &Current) -> bool {
    current.attach_epoch <= current.member_epoch
        && (current.owned.values()).all(|owned| owned.given_epoch <= current.member_epoch)
}

fn check_ownership(state: &GroupState) -> Result<(), Broken> {
    let mut owners = BTreeMap::new();
    for (id, current) in &state.currents {
        for at in current.owned.keys() {
            if owners.insert(*at, *id).is_some() || state.owners.get(at) != Some(id) {
                return Err(Broken::TwoOwners(*at));
            }
        }
    }
    let mut heirs = BTreeMap::new();
    for (id, target) in &state.targets {
        for at in target {
            if heirs.insert(*at, *id).is_some() || state.heirs.get(at) != Some(id) {
                return Err(Broken::TwoHeirs(*at));
            }
        }
    }
    // Look-ups of what is no longer there.
    if let Some(at) = state.owners.keys().find(|at| !owners.contains_key(at)) {
        return Err(Broken::TwoOwners(*at));
    }
    if let Some(at) = state.heirs.keys().find(|at| !heirs.contains_key(at)) {
        return Err(Broken::TwoHeirs(*at));
    }
    for (id, current) in &state.currents {
        for (at, owned) in &current.owned {
            if !owned.revoking && heirs.get(at) != Some(id) {
                return Err(Broken::NotRevoked(*id, *at));
            }
        }
    }
    match heirs.keys().find(|at| !owners.contains_key(at)) {
        Some(at) => Err(Broken::NotGiven(*at)),
        None => Ok(()),
    }
}
