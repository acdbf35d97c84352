//! This node and its controller: the session, the view, and what follows from it.
//!
//! All of it runs on a runtime of its own, so that neither streams nor disks can
//! make the node look dead. Three tasks: the [`session`] says that the process
//! lives, the [`follow`] task keeps the view, the [`assigner`] opens, leads and
//! deletes partitions as the view says. Without a controller the node goes on
//! with what it has.

pub(crate) mod assign;
pub(crate) mod assigner;
mod controllers;
mod follow;
mod health;
mod identity;
mod session;

pub use assigner::Assigner;
pub use controllers::{BackOff, Controllers};
pub use follow::follow;
pub use identity::{Identity, IdentityError};
pub use session::{Registration, Session, Stopped};
