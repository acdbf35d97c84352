//! Each mistake, planted, must be seen: a check that nothing can fail proves
//! nothing.

use super::tests::run;
use crate::fault::{Fault, plant};
use std::panic::catch_unwind;

/// The first of so many seeds that sees the mistake.
fn seen_within(fault: Fault, seeds: u64) {
    plant(Some(fault));
    let seen = (0..seeds).find_map(|seed| match catch_unwind(|| run(seed)) {
        Ok(Ok(_)) => None,
        Ok(Err(why)) => Some(why),
        Err(_) => Some(format!("seed {seed}, a broken invariant")),
    });
    plant(None);
    let why = seen.unwrap_or_else(|| panic!("{fault:?} was not seen in {seeds} seeds"));
    println!("{fault:?}: {why}");
}

#[test]
fn a_watermark_without_the_in_sync_set_is_seen() {
    seen_within(Fault::WatermarkWithoutInSync, 20);
}

#[test]
fn a_watermark_that_moves_below_the_minimum_is_seen() {
    seen_within(Fault::WatermarkBelowMinimum, 50);
}

#[test]
fn cutting_to_the_watermark_is_seen() {
    seen_within(Fault::TruncatesToWatermark, 20);
}

#[test]
fn reports_of_another_epoch_that_count_are_seen() {
    seen_within(Fault::ReportEpochIgnored, 500);
}

#[test]
fn a_follower_that_returns_too_early_is_seen() {
    seen_within(Fault::GrowthTooEarly, 50);
}

#[test]
fn an_answer_of_an_old_session_that_is_applied_is_seen() {
    seen_within(Fault::OldSessionApplied, 200);
}

#[test]
fn the_word_of_a_process_that_is_gone_is_seen() {
    seen_within(Fault::OldIncarnationAccepted, 3_000);
}

#[test]
fn a_proposal_that_does_not_hold_the_watermark_is_seen() {
    seen_within(Fault::ProposalDoesNotHold, 100);
}
