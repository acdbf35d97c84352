use super::*;
use talweg_types::{Acks, Compression};

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("talweg").chain(line.split_whitespace()))
}

fn command(line: &str) -> Command {
    parse(line)
        .unwrap_or_else(|e| panic!("{line}: {e}"))
        .command
}

#[test]
fn the_definition_of_the_command_line_is_consistent() {
    // clap's own check of names, conflicts and groups.
    <Cli as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn every_line_of_the_contract_is_understood() {
    for line in [
        "dev",
        "dev --data-dir d --grpc 127.0.0.1:1 --http 127.0.0.1:2",
        "topic create t",
        "topic create t --partitions 3 --replication-factor 1 --config a=b --config c=d",
        "topic list",
        "topic describe t",
        "topic alter t --partitions 5",
        "topic alter t --config k=v --config l=w",
        "topic delete t",
        "topic config-keys",
        "produce t",
        "produce t --key-separator : --null-key N --null-value V --partition 2 --acks all --compression zstd --header a=b --file f",
        "produce t --key k --acks 0",
        "consume t",
        "consume t --partition 1 --partition 2 --from 5 --max 3 --until-end --format key-value",
        "log dump p --verify",
        "log dump p --digest --to 10",
        "log dump p --digest --newest",
        "log lookup p 7",
        "bench produce t --records 5 --record-size 100 --rate 10 --streams 2 --acks 1 --direct",
        "bench fetch t --records 5 --record-size 100 --rate 10 --streams 2 --acks 1 --direct",
        "bench latency t --records 5 --record-size 100 --rate 10 --streams 2 --acks 1 --direct",
        "consume t --group g --commit each --max 3",
        "group list",
        "group describe g",
        "group lag g --topic t --watch --interval 500",
        "group reset g --topic t --to earliest",
        "group reset g --topic t --to -5 --execute",
        "group reset g --topic t --to +5",
        "group reset g --topic t --to @5",
        "group forget g --topic t --partition 1",
        "group delete g",
        "dlq list --group g",
        "dlq replay t.g.dlq --max 5",
        "dlq purge t.g.dlq --execute",
        "cluster describe",
        "node drain 3",
        "node undrain 3",
        "node remove 3",
        "partition reassign t:0 --to 1,2,3 --throttle 5",
        "partition status",
        "partition cancel t:0",
        "partition elect t:0 --unclean",
        "tour failover --dir d --keep --json",
        "-b http://h:1 --json topic list",
        "topic list -b http://h:1 --json",
        "topic list --bootstrap h:1,i:2",
    ] {
        command(line);
    }
}

#[test]
fn wrong_usage_is_refused_before_the_network() {
    for line in [
        "",
        "nonsense",
        "topic",
        "topic create",
        "topic create t --partitions x",
        "node drain x",
        "node drain",
        "partition reassign t --to 1",
        "partition reassign t:x --to 1",
        "partition reassign t:0",
        "partition elect :0",
        "cluster balance --plan --execute",
        "cluster balance --stop --execute",
        "cluster balance --throttle x",
        "topic create t --config novalue",
        "topic create t --config =v",
        "topic alter t",
        "produce",
        "produce t --key k --key-separator :",
        "produce t --acks 2",
        "produce t --compression brotli",
        "produce t --partition -1",
        "produce t --header novalue",
        "consume t --from yesterday",
        "consume t --from -1",
        "consume t --max 0",
        "consume t --format xml",
        "log dump",
        "log dump p --to 5",
        "log lookup p",
        "log lookup p -5",
        "bench produce t --records 0",
        "bench produce t --duration never",
        "bench produce t --server-pid x",
        "-b https://h:1 topic list",
        "-b http:// topic list",
        "-b h topic list",
        "-b http://h:1/path topic list",
        "dev --grpc nowhere",
        // Words of later versions are not taken yet.
        "transaction list",
        "group",
        "group lag",
        "group reset g --to earliest",
        "group reset g --topic t --to soon",
        "group lag g --interval 500",
        "group lag g --watch --interval 50",
        "consume t --commit each",
        "consume t --group g --partition 1",
        "dlq replay d --max 0",
        "dlq",
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}: {error}");
    }
}

#[test]
fn an_empty_separator_is_refused() {
    let error =
        Cli::try_parse_from(["talweg", "produce", "t", "--key-separator", ""]).expect_err("empty");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn produce_takes_its_options() {
    let Command::Produce(args) =
        command("produce t --acks 1 --compression lz4 --header a=b=c --header a= --partition 7")
    else {
        panic!("not produce")
    };
    assert_eq!(args.acks, Some(Acks::One));
    assert_eq!(args.compression, Some(Compression::Lz4));
    assert_eq!(args.partition, Some(7));
    let header: Vec<_> = args
        .header
        .iter()
        .map(|h| (h.name.as_str(), h.value.as_str()))
        .collect();
    assert_eq!(
        header,
        [("a", "b=c"), ("a", "")],
        "order is kept, names repeat, values hold '='"
    );
}

#[test]
fn from_has_five_spellings() {
    let table = [
        ("earliest", Start::Earliest),
        ("latest", Start::Latest),
        ("0", Start::Offset(0)),
        ("9223372036854775807", Start::Offset(i64::MAX)),
        ("@0", Start::Time(0)),
        ("@1370044800000", Start::Time(1_370_044_800_000)),
        ("@2013-06-01T00:00:00Z", Start::Time(1_370_044_800_000)),
        ("@2013-06-01T02:00:00+02:00", Start::Time(1_370_044_800_000)),
        ("@2013-06-01T00:00:00.001Z", Start::Time(1_370_044_800_001)),
        // A record at .000 is before this instant, so the search begins at .001.
        (
            "@2013-06-01T00:00:00.0000001Z",
            Start::Time(1_370_044_800_001),
        ),
    ];
    for (text, expected) in table {
        assert_eq!(text.parse::<Start>(), Ok(expected), "{text}");
    }
    for text in [
        "",
        "@",
        "Earliest",
        "-1",
        "1.5",
        "@-1",
        "@2013-06-01",
        "@1969-12-31T23:59:59Z",
        "9223372036854775808",
    ] {
        text.parse::<Start>().expect_err(text);
    }
}

#[test]
fn bootstrap_is_a_list_of_urls() {
    let urls = |text: &str| text.parse::<Bootstrap>().map(|b| b.0);
    assert_eq!(urls("http://a:1"), Ok(vec!["http://a:1".into()]));
    assert_eq!(
        urls("a:1, http://b:2/"),
        Ok(vec!["http://a:1".into(), "http://b:2".into()])
    );
    assert_eq!(
        urls("http://[::1]:7070"),
        Ok(vec!["http://[::1]:7070".into()])
    );
    for text in [
        "",
        ",",
        "http://",
        "a",
        "https://a:1",
        "ftp://a:1",
        "http://a:1/x",
        "http://a:1,",
    ] {
        urls(text).expect_err(text);
    }
}

#[test]
fn direct_thin_is_refused_by_a_sentence() {
    let Command::Bench(BenchCommand::Produce(args)) =
        command("bench produce t --direct --form thin")
    else {
        panic!("not bench produce")
    };
    assert!(args.load.check().is_err());
}

#[test]
fn help_has_examples_for_every_command() {
    // A command that a person meets in `--help` shows how it is used.
    fn walk(command: &clap::Command, path: &str) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{path} {}", sub.get_name());
            if sub.has_subcommands() {
                walk(sub, &path);
                continue;
            }
            let help = sub
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no example");
            assert!(
                help.contains(path.trim()),
                "the example of {path} shows another command"
            );
        }
    }
    walk(&<Cli as clap::CommandFactory>::command(), "talweg");
}
