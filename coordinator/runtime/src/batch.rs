//! Decisions that share an append.

use crate::{Encoded, Machine, Outcome, Output};
use std::sync::Arc;
use talweg_types::Offset;

pub(crate) struct Batch<M: Machine> {
    pub id: u64,
    /// Never empty.
    pub records: Vec<Encoded>,
    pub bytes: usize,
    pub decisions: Vec<Decision<M>>,
    /// Takes no more records.
    pub sealed: bool,
}

pub(crate) enum Decision<M: Machine> {
    Step {
        name: Arc<str>,
        number: u64,
        token: Option<u64>,
        answer: M::Answer,
        effects: Vec<M::Effect>,
        /// None: it has no records.
        undo: Option<M::Undo>,
    },
    Barrier {
        token: u64,
        number: u64,
    },
}

impl<M: Machine> Decision<M> {
    pub fn release(self, applied: Offset, out: &mut Vec<Output<M>>) {
        match self {
            Self::Step {
                name,
                number,
                token,
                answer,
                effects,
                undo,
            } => {
                let wrote = undo.is_some();
                out.extend(token.map(|token| Output::Answer {
                    token,
                    number,
                    wrote,
                    outcome: Outcome::Decided(answer),
                }));
                out.extend(effects.into_iter().map(|effect| Output::Effect {
                    name: Arc::clone(&name),
                    number,
                    effect,
                }));
            }
            Self::Barrier { token, number } => out.push(Output::Answer {
                token,
                number,
                wrote: false,
                outcome: Outcome::Passed(applied),
            }),
        }
    }

    /// Who waits for it is told `outcome`.
    pub fn refuse(self, outcome: Outcome<M::Answer>) -> Option<Output<M>> {
        let (token, number) = match self {
            Self::Step { token, number, .. } => (token?, number),
            Self::Barrier { token, number } => (token, number),
        };
        Some(Output::Answer {
            token,
            number,
            wrote: false,
            outcome,
        })
    }
}
