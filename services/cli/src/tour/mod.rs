//! `talweg tour`: stories on a small cluster of real processes, told as they
//! are played.
//!
//! A step says what is done and what is seen. What is seen is compared with
//! what the story promises; the first difference ends it with exit code 1. The
//! integration tests play the same stories.

mod failover;
mod gate;
mod look;
mod places;
mod planes;
mod told;

pub use gate::Gate;
pub use look::{Look, Want};

use crate::{
    args::{Globals, TourArgs, TourCommand},
    failure::Failure,
};
use places::Place;
use talweg_kit::shutdown;
use told::Told;

/// Plays a story; stops its processes however it ends.
pub async fn run(globals: &Globals, command: TourCommand) -> Result<(), Failure> {
    let TourCommand::Failover(args) = command;
    let TourArgs { dir, keep } = args;
    let stop = shutdown::on_signals().map_err(|error| Failure::local("signals", &error))?;
    let place = Place::take(dir)?;
    let mut told = Told::new(globals.json, "failover", place.path());
    let played = tokio::select! {
        biased;
        () = stop.cancelled() => Err(Failure::Reported),
        played = failover::play(&mut told, place.path()) => played,
    };
    let kept = place.leave(keep || played.is_err());
    told.end(played.is_ok(), kept)?;
    played
}
