//! A leader is cut off from controllers and followers while clients still reach
//! it: what it acknowledges at acks=all stays, at acks=1 it stops within its session
//! time-out; healed, it cuts what nobody else has and says so. Needs root.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use talweg_harness::{
    Answered, BACK, Cluster, Guard, Load, OneShot, Stack, eventually,
    nemesis::{Peers, SESSION, Way, links},
    raw::{connect, create_topic},
};
use talweg_proto::v1::{Acks, ErrorCode};
use tokio::task::JoinHandle;

/// From the last sign of life to the refusal: a heartbeat that was on its way
/// when the link was cut, and a busy machine.
const SLACK: Duration = Duration::from_secs(1);
/// Long enough for the session to end twice.
const ISOLATED: Duration = Duration::from_secs(7);

struct Client {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<Answered>>,
}

impl Client {
    /// Writes to the storage node itself, whoever leads.
    fn start(url: String, number: u32, acks: Acks, load: &Load) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = OneShot {
            url,
            topic: "t".into(),
            partition: 0,
            number,
            acks,
            recorder: load.recorder(),
        };
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move { client.run(&stopped).await });
        Self { stop, task }
    }

    async fn stop(self) -> Vec<Answered> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the client ended well")
    }
}

/// The description of the topic says what the node at `place` cut: what it took at
/// acks=1 while nobody heard it, and nothing below its watermark.
async fn reports_its_cut(cluster: &Cluster, place: usize) {
    let node = u32::try_from(place).expect("few") + 1;
    let newest = eventually("the report of the cut", BACK, || async {
        let partitions = cluster.describe().await?;
        let mut replicas = partitions[0].replicas_detail.iter();
        let detail = replicas.find(|detail| detail.node_id == node);
        let cuts = detail.and_then(|detail| detail.truncations.as_ref());
        let newest = cuts.filter(|cuts| cuts.count > 0);
        let newest = newest.and_then(|cuts| cuts.newest);
        newest.ok_or_else(|| format!("{partitions:?}"))
    })
    .await;
    println!("{newest:?}");
    assert!(newest.from_offset > newest.to_offset && newest.bytes > 0);
    assert!(!newest.below_watermark, "{newest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_leader_stops_and_what_it_promised_stays() {
    let mut stack = Stack::builder()
        .storages(3)
        .controllers_on_etcd(1)
        .etcd_in_memory()
        .in_namespaces()
        .start();
    let url = stack.gateway(0);
    create_topic(&connect(&url).await, "t", 1, &[]).await;
    let cluster = Cluster::connect(&url, "t").await;
    cluster.all_in_sync(3).await;
    let load = Load::start(vec![url.clone()], "t", 1, Acks::All).await;
    let load = load.read_by(&url);
    let recorder = load.recorder();
    let victim = cluster.leader(0).await;
    let all = Client::start(stack.storage(victim), 1, Acks::All, &load);
    let one = Client::start(stack.storage(victim), 2, Acks::Leader, &load);
    load.advance(load.acknowledged(), 100, BACK).await;
    let guard = Guard::begin(&mut stack, [load.watched()]).await;

    let role = format!("storage-{victim}");
    let mut cut = links(&stack, &role, Peers::Controllers, Way::Both);
    cut.extend(links(&stack, &role, Peers::Storages, Way::Both));
    let network = stack.network();
    cut.iter()
        .for_each(|(from, to)| network.cut_one_way(from, to));
    let since = recorder.now();
    let took = load.recovered(0, since, BACK).await;
    println!("{took:?} from the cut to the next acknowledgement through the gateway");
    // The gateway hears of the next leader, and does not wait for words of the last one.
    assert!(took <= SESSION + SLACK, "{took:?}");
    let read = eventually("a record of the next leader", BACK, || async {
        let read = recorder.read_after(0, since);
        read.ok_or_else(|| "none was read".to_owned())
    });
    let read = read.await - since;
    println!("{read:?} to the next record for a reader");
    assert!(read <= SESSION + SLACK, "{read:?}");
    // Clients go on asking the isolated one for a while.
    let rest = (since + ISOLATED).saturating_sub(recorder.now());
    tokio::time::sleep(rest).await;
    let healed = recorder.now();
    cut.iter()
        .for_each(|(from, to)| network.mend_one_way(from, to));
    cluster.all_in_sync(3).await;
    load.advance(load.acknowledged(), 100, BACK).await;

    let (all, one) = (all.stop().await, one.stop().await);
    let isolated = |answers: &[Answered]| -> Vec<Answered> {
        let during = |a: &&Answered| a.invoked >= since && a.completed < healed;
        answers.iter().filter(during).copied().collect()
    };
    let (all, one) = (isolated(&all), isolated(&one));
    let last = |answers: &[Answered]| {
        let done = answers.iter().filter(|a| matches!(a.answer, Some(Ok(_))));
        done.map(|a| a.completed - since).max()
    };
    println!(
        "last acknowledgements of the isolated leader: acks=1 {:?}, acks=all {:?}",
        last(&one),
        last(&all)
    );
    assert_eq!(
        last(&all),
        None,
        "nobody else can have confirmed it: {all:?}"
    );
    let stopped = last(&one).expect("clients reached it after the cut");
    assert!(stopped <= SESSION + SLACK, "acks=1 went on for {stopped:?}");
    let refused = one
        .iter()
        .filter(|a| a.answer == Some(Err(ErrorCode::NoQuorumContact)));
    assert!(refused.count() > 0, "{one:?}");

    reports_its_cut(&cluster, victim).await;
    let settled = guard.end(&mut stack).await;
    println!("{:?}", load.finish_with_gap(&url).await);
    settled.replicas_agree(&mut stack).await;
    let alarms = stack.alarms();
    assert!(alarms.is_empty(), "{alarms:#?}");
}
