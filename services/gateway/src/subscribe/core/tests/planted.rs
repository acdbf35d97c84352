//! The rules are what the histories and the stories see: without one of them, some
//! test fails.

use super::{failures, moves, starts, world};
use crate::subscribe::core::fault::{Fault, plant};
use std::panic::catch_unwind;

#[test]
fn planted_mistakes_are_seen() {
    let cases: [(Fault, fn()); 14] = [
        (Fault::UnsentStored, moves::what_was_not_sent_is_not_stored),
        (Fault::StepsBack, moves::only_a_seek_goes_back),
        (Fault::PassedBeforeCopied, world::some_histories),
        (Fault::SentWhileRevoked, world::some_histories),
        (
            Fault::GivenUpUnstored,
            moves::a_partition_is_given_up_when_its_records_are_done,
        ),
        (
            Fault::GapUntold,
            starts::a_gap_is_told_before_records_follow,
        ),
        (Fault::BeginsUnstored, world::some_histories),
        (
            Fault::SoughtIsDelivered,
            starts::a_seek_is_delivered_only_when_a_leader_begins_there,
        ),
        (Fault::GenerationKept, world::some_histories),
        (Fault::OldViewTaken, moves::an_old_view_changes_nothing),
        (Fault::RequestsOvertake, world::some_histories),
        (
            Fault::DeadlySentTogether,
            failures::one_by_one_waits_for_each_record,
        ),
        (
            Fault::JoinTakenForDone,
            moves::topics_that_appear_during_a_join_are_joined_after_it,
        ),
        (
            Fault::EpochAlwaysClaimed,
            starts::the_last_epoch_is_claimed_only_where_its_batch_ends,
        ),
    ];
    for (fault, test) in cases {
        plant(Some(fault));
        let seen = catch_unwind(test).is_err();
        plant(None);
        assert!(seen, "{fault:?} goes unseen");
        test();
    }
}
