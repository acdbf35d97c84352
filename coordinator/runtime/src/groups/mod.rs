//! A consumer group as a [`Machine`], and its records as they are stored
//! (docs/formats/groups.md).

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use crate::{Decided, DecodeError, Encoded, Machine, Now};
use talweg_group::{
    Answer, Effect, Event, Group, GroupState, Record, Refusal, Settings, Topics, Undo,
};
use talweg_types::MonotonicMs;

pub use decode::decode_record;
pub use encode::encode_record;

impl Machine for Group {
    type Settings = Settings;
    type Context = Topics;
    type Event = Event;
    type Answer = Result<Answer, Refusal>;
    type Effect = Effect;
    type Record = Record;
    type Undo = Undo;
    type Stored = GroupState;

    fn new(settings: Settings) -> Self {
        Group::new(settings)
    }

    fn step(&mut self, now: Now, topics: &Topics, event: Event) -> Decided<Self> {
        let step = Group::step(self, now, topics, event);
        Decided {
            records: step.records,
            answer: step.answer,
            effects: step.effects,
            undo: step.undo,
        }
    }

    fn undo(&mut self, now: Now, undo: Undo) {
        Group::undo(self, now, undo);
    }

    fn is_sign_of_life(event: &Event) -> bool {
        matches!(event, Event::Heartbeat(_))
    }

    fn rests_on_nothing(answer: &Result<Answer, Refusal>) -> bool {
        matches!(answer, Ok(Answer::Done))
    }

    fn tick() -> Event {
        Event::Tick
    }

    fn next_deadline(&self) -> Option<MonotonicMs> {
        Group::next_deadline(self)
    }

    fn is_gone(&self) -> bool {
        self.state().is_gone()
    }

    fn state_hash(&self) -> u64 {
        self.state().state_hash()
    }

    fn encode(name: &str, record: Record) -> Encoded {
        encode_record(name, &record)
    }

    fn decode(key: &[u8], value: Option<&[u8]>) -> Result<(String, Record), DecodeError> {
        decode_record(key, value)
    }

    fn apply(stored: &mut GroupState, record: Record) {
        stored.apply(record);
    }

    fn is_nothing(stored: &GroupState) -> bool {
        stored.is_gone()
    }

    fn stored_hash(stored: &GroupState) -> u64 {
        stored.state_hash()
    }

    fn load(settings: Settings, now: Now, stored: GroupState) -> Result<Self, String> {
        Group::load(settings, now, stored.snapshot()).map_err(|error| error.to_string())
    }
}
