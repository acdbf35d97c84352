//! A member of a consumer group on a task of its own: it takes what it is sent,
//! grants credit again, commits, and gives up what is asked back.

use crate::eventually;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use talweg_client::{
    Client, ClientConfig, SubscribeEvent, Subscriber, payload::fetched_record_bytes,
};
use talweg_proto::v1::{self, subscribe_response::Frame};
use tokio::{sync::mpsc, task::JoinHandle};

/// A topic's name and a partition.
pub type Place = (String, u32);

/// When a member commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commits {
    /// After each frame of records.
    Frames,
    /// When it is told to.
    Asked,
}

/// A record as a member got it.
#[derive(Clone, PartialEq, Debug)]
pub struct Received {
    pub place: Place,
    pub record: v1::FetchedRecord,
    pub at: Instant,
    /// Which of its assignments the partition was in: an index of `assigned`.
    pub assignment: usize,
}

/// What a member has heard.
#[derive(Clone, Default, Debug)]
pub struct Heard {
    pub records: Vec<Received>,
    /// What it holds, and the next offset to read there.
    pub owned: BTreeMap<Place, i64>,
    /// What it was ever given, with its first position, in order.
    pub assigned: Vec<(Place, i64)>,
    /// When each of those came.
    pub assigned_at: Vec<Instant>,
    /// What was asked back, in order.
    pub revoked: Vec<Place>,
    /// Frames of assignments, if only empty ones.
    pub assignments: usize,
    /// Offsets that were stored, in order.
    pub committed: Vec<(Place, i64)>,
    /// When each answer came.
    pub committed_at: Vec<Instant>,
    pub commits_refused: Vec<v1::ErrorDetail>,
    pub gaps: Vec<v1::SubscribeGap>,
    pub partition_errors: Vec<v1::FetchPartitionError>,
    /// Streams that took the place of broken or drained ones.
    pub resumes: usize,
    /// It was asleep once: what it heard may have been old when it heard it.
    pub slept: bool,
    /// Why it ended, if it was not asked to.
    pub ended: Option<String>,
}

enum Order {
    Commit,
    Nack(v1::SubscribePosition, String, bool),
    Seek(v1::SubscribePosition),
    Pause(v1::SubscribePosition),
    GoOn(v1::SubscribePosition),
    Sleep(Duration),
    Leave,
}

/// A member that runs until it is dropped, which breaks its stream.
pub struct Member {
    orders: mpsc::UnboundedSender<Order>,
    heard: Arc<Mutex<Heard>>,
    id: String,
    task: JoinHandle<()>,
}

/// What a member of `group` says that reads `topic` in thin form.
pub fn subscription(group: &str, topic: &str) -> v1::SubscribeOpen {
    v1::SubscribeOpen {
        group: group.into(),
        topics: vec![topic.into()],
        form: v1::Form::Records.into(),
        credit: Some(v1::Credit {
            bytes: 4 << 20,
            records: 10_000,
        }),
        ..Default::default()
    }
}

/// A position as a member names it.
pub fn position(topic_id: &Bytes, partition: u32, offset: i64) -> v1::SubscribePosition {
    v1::SubscribePosition {
        topic_id: topic_id.clone(),
        partition,
        offset,
        ..Default::default()
    }
}

/// Frames of this stream until one is wanted.
///
/// # Panics
/// The stream ends or breaks, or nothing is wanted in time.
pub async fn frame<T>(
    subscriber: &mut Subscriber,
    deadline: Duration,
    mut wanted: impl FnMut(Frame) -> Option<T>,
) -> T {
    let hear = async {
        loop {
            match subscriber.next().await.expect("the stream lives") {
                SubscribeEvent::Frame(frame) => {
                    if let Some(found) = wanted(frame) {
                        return found;
                    }
                }
                event => panic!("{event:?}"),
            }
        }
    };
    let heard = tokio::time::timeout(deadline, hear).await;
    heard.expect("the frame in time")
}

/// A client of these gateways, patient enough for any story.
pub fn client(gateways: &[String]) -> Client {
    let config = ClientConfig {
        client_id: "story".into(),
        call_timeout: Duration::from_secs(60),
        ..ClientConfig::default()
    };
    Client::connect(gateways, config).expect("URLs")
}

impl Member {
    /// Joins; returns when the stream is open.
    pub async fn join(gateways: &[String], open: v1::SubscribeOpen, commits: Commits) -> Self {
        let subscriber = Subscriber::open(&client(gateways), open).await;
        Self::run(subscriber.expect("the member joins"), commits)
    }

    /// Goes on with a stream that is open.
    pub fn run(subscriber: Subscriber, commits: Commits) -> Self {
        let (orders, queue) = mpsc::unbounded_channel();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let id = subscriber.opened().member_id.clone();
        let running = Running {
            subscriber,
            commits,
            heard: Arc::clone(&heard),
            names: BTreeMap::new(),
            dirty: BTreeMap::new(),
            sent: BTreeMap::new(),
        };
        let task = tokio::spawn(running.run(queue));
        Self {
            orders,
            heard,
            id,
            task,
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    /// Looks without copying.
    pub fn look<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock())
    }

    /// Waits until what it heard is so.
    pub async fn until(&self, what: &str, deadline: Duration, hope: impl Fn(&Heard) -> bool) {
        eventually(what, deadline, || async {
            let heard = self.heard.lock();
            match hope(&heard) {
                true => Ok(()),
                false => Err(format!(
                    "owned {:?}, {} records, committed {:?}, ended {:?}",
                    heard.owned,
                    heard.records.len(),
                    heard.committed.last(),
                    heard.ended
                )),
            }
        })
        .await;
    }

    /// What it holds.
    pub fn owned(&self) -> BTreeSet<Place> {
        self.look(|heard| heard.owned.keys().cloned().collect())
    }

    fn order(&self, order: Order) {
        // A member that has ended is told so by what it heard.
        let _ = self.orders.send(order);
    }

    /// Commits all that it has received.
    pub fn commit(&self) {
        self.order(Order::Commit);
    }

    pub fn nack(&self, record: v1::SubscribePosition, reason: &str, poison: bool) {
        self.order(Order::Nack(record, reason.into(), poison));
    }

    pub fn seek(&self, to: v1::SubscribePosition) {
        self.order(Order::Seek(to));
    }

    /// Nothing of this partition is sent for a while.
    pub fn pause(&self, partition: v1::SubscribePosition) {
        self.order(Order::Pause(partition));
    }

    /// It goes on.
    pub fn go_on(&self, partition: v1::SubscribePosition) {
        self.order(Order::GoOn(partition));
    }

    /// Neither reads nor says anything for so long.
    pub fn sleep(&self, time: Duration) {
        self.order(Order::Sleep(time));
    }

    /// Leaves the group and waits for the goodbye.
    pub async fn leave(mut self, deadline: Duration) -> Heard {
        self.order(Order::Leave);
        tokio::time::timeout(deadline, &mut self.task)
            .await
            .expect("the goodbye in time")
            .expect("the member's task");
        self.heard.lock().clone()
    }

    /// Breaks the stream without a word.
    pub fn kill(self) -> Heard {
        self.task.abort();
        self.heard.lock().clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Running {
    subscriber: Subscriber,
    commits: Commits,
    heard: Arc<Mutex<Heard>>,
    /// By topic id and partition.
    names: BTreeMap<(Vec<u8>, u32), Place>,
    /// Received and not committed: the next offset.
    dirty: BTreeMap<(Vec<u8>, u32), i64>,
    /// Commits that were not answered yet.
    sent: BTreeMap<u64, Vec<(Place, i64)>>,
}

fn key(topic_id: &[u8], partition: u32) -> (Vec<u8>, u32) {
    (topic_id.to_vec(), partition)
}

impl Running {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.on_order(order).await,
                    None => return,
                },
                event = self.subscriber.next() => match event {
                    Ok(SubscribeEvent::Closed) => return,
                    Ok(SubscribeEvent::Resumed(_)) => self.on_resumed(),
                    Ok(SubscribeEvent::Frame(frame)) => self.on_frame(frame).await,
                    Err(refusal) => {
                        self.heard.lock().ended = Some(format!("{refusal:?}"));
                        return;
                    }
                },
            }
        }
    }

    async fn on_order(&mut self, order: Order) {
        match order {
            Order::Commit => self.commit().await,
            Order::Nack(record, reason, poison) => {
                self.subscriber.nack(record, &reason, poison).await;
            }
            Order::Seek(to) => self.subscriber.seek(vec![to]).await,
            Order::Pause(partition) => self.subscriber.pause(vec![partition]).await,
            Order::GoOn(partition) => self.subscriber.go_on(vec![partition]).await,
            Order::Sleep(time) => {
                self.heard.lock().slept = true;
                tokio::time::sleep(time).await;
            }
            Order::Leave => self.subscriber.leave().await,
        }
    }

    fn on_resumed(&mut self) {
        let mut heard = self.heard.lock();
        heard.resumes += 1;
        heard.owned.clear();
        self.dirty.clear();
        self.sent.clear();
    }

    async fn commit(&mut self) {
        let due = std::mem::take(&mut self.dirty);
        if due.is_empty() {
            return;
        }
        let named = |((id, partition), offset): (&(Vec<u8>, u32), &i64)| {
            let place = self
                .names
                .get(&key(id, *partition))
                .cloned()
                .unwrap_or_default();
            (place, *offset)
        };
        let places: Vec<_> = due.iter().map(named).collect();
        let next = due.into_iter();
        let next = next.map(|((id, partition), offset)| position(&id.into(), partition, offset));
        let next = next.collect();
        let id = self.subscriber.commit(next).await;
        self.sent.insert(id, places);
    }

    async fn on_frame(&mut self, frame: Frame) {
        match frame {
            Frame::Assigned(assigned) => self.on_assigned(assigned),
            Frame::Records(records) => self.on_records(records).await,
            Frame::Revoking(revoking) => self.on_revoking(revoking.partitions).await,
            Frame::Committed(committed) => self.on_committed(committed),
            Frame::Gap(gap) => self.heard.lock().gaps.push(gap),
            Frame::PartitionError(error) => self.heard.lock().partition_errors.push(error),
            _ => {}
        }
    }

    fn on_assigned(&mut self, assigned: v1::SubscribeAssigned) {
        let mut heard = self.heard.lock();
        heard.assignments += 1;
        for position in assigned.partitions {
            let place = (position.topic.clone(), position.partition);
            let key = key(&position.topic_id, position.partition);
            self.names.insert(key, place.clone());
            heard.owned.insert(place.clone(), position.next_offset);
            heard.assigned.push((place, position.next_offset));
            heard.assigned_at.push(Instant::now());
        }
    }

    async fn on_records(&mut self, frame: v1::FetchedRecords) {
        let position = frame.position.unwrap_or_default();
        let place = (position.topic.clone(), position.partition);
        let bytes: usize = frame.records.iter().map(fetched_record_bytes).sum();
        let count = frame.records.len() as i64;
        if let Some(last) = frame.records.last() {
            let key = key(&position.topic_id, position.partition);
            self.dirty.insert(key, last.offset + 1);
        }
        {
            let mut heard = self.heard.lock();
            heard
                .owned
                .entry(place.clone())
                .and_modify(|next| *next = position.next_offset);
            let at = Instant::now();
            let assignment = heard
                .assigned
                .iter()
                .rposition(|(given, _)| *given == place);
            let assignment = assignment.unwrap_or(usize::MAX);
            let received = frame.records.into_iter().map(|record| Received {
                place: place.clone(),
                record,
                at,
                assignment,
            });
            heard.records.extend(received);
        }
        if self.commits == Commits::Frames {
            self.commit().await;
        }
        self.subscriber.grant(bytes as i64, count).await;
    }

    async fn on_revoking(&mut self, partitions: Vec<v1::SubscribePosition>) {
        if self.commits == Commits::Frames {
            self.commit().await;
        }
        {
            let mut heard = self.heard.lock();
            for partition in &partitions {
                let key = key(&partition.topic_id, partition.partition);
                self.dirty.remove(&key);
                let place = self.names.get(&key).cloned().unwrap_or_default();
                heard.owned.remove(&place);
                heard.revoked.push(place);
            }
        }
        self.subscriber.revoked(partitions).await;
    }

    fn on_committed(&mut self, committed: v1::SubscribeCommitted) {
        let places = self.sent.remove(&committed.commit_id).unwrap_or_default();
        let mut heard = self.heard.lock();
        match committed.error {
            Some(error) => heard.commits_refused.push(error),
            None => {
                let now = Instant::now();
                heard.committed_at.extend(places.iter().map(|_| now));
                heard.committed.extend(places);
            }
        }
    }
}
