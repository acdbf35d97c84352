//! The backend against real etcd processes, which the tests start and kill.

mod etcd;
mod happened;
mod partition;
mod proxy;
mod reads;
mod restarts;
mod story;
mod suite;
