//! `talweg consume --group --until-end` beside a member that holds the only partition:
//! there is nothing to read to its end, so the command says so and ends well.

mod operator;

use operator::PATIENCE;
use std::{process::Stdio, time::Duration};
use talweg_harness::{
    Member, Stack, binary,
    member::{Commits, subscription},
    raw::{connect, create_topic},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_read_is_read_to_its_end() {
    let stack = Stack::builder().coordinators(1).start();
    let channel = connect(&stack.gateway(0)).await;
    create_topic(&channel, "t", 1, &[]).await;
    let holder = Member::join(&[stack.gateway(0)], subscription("g", "t"), Commits::Frames).await;
    holder
        .until("the partition", PATIENCE, |heard| heard.owned.len() == 1)
        .await;
    let command = tokio::process::Command::new(binary("talweg"))
        .args(["--bootstrap", &stack.gateway(0), "consume", "t"])
        .args(["--group", "g", "--until-end"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE + Duration::from_secs(20), command)
        .await
        .expect("it ends")
        .expect("talweg runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("hold all partitions"), "{said}");
    assert!(output.stdout.is_empty());
    assert_eq!(holder.owned().len(), 1, "nothing moved");
}
