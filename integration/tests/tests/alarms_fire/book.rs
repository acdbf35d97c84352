//! The rule files against the runbook, and against what is tested.

use super::{disks, groups, replicas, repository, rule_files};
use std::collections::{BTreeMap, BTreeSet};
use talweg_harness::prometheus::{check_rules, shortened};

/// One rule as the lines of its file say; the key before the colon, its text after it.
type Rule = BTreeMap<String, String>;

fn rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for file in rule_files() {
        let text = std::fs::read_to_string(&file).expect("a rule file");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let line = line.trim_start();
            if line.starts_with("- alert:") {
                rules.push(Rule::new());
            }
            let Some((key, value)) = line.trim_start_matches("- ").split_once(':') else {
                continue;
            };
            if let Some(rule) = rules.last_mut() {
                rule.insert(key.into(), value.trim().trim_matches('"').into());
            }
        }
    }
    rules
}

/// Names of our metrics in the expressions.
pub fn metrics_named() -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let of = |rule: &Rule| {
        let words: Vec<_> = rule["expr"].split(word).map(str::to_owned).collect();
        words.into_iter().filter(|word| word.starts_with("talweg_"))
    };
    rules().iter().flat_map(of).collect()
}

/// Anchors of the headings, as GitHub makes them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings = markdown.lines().filter_map(|line| line.strip_prefix("## "));
    headings
        .map(|heading| heading.trim().to_lowercase().replace(' ', "-"))
        .collect()
}

#[test]
fn every_alert_is_whole_and_has_its_section() {
    check_rules(&rule_files());
    let mut used = BTreeSet::new();
    for rule in rules() {
        let name = &rule["alert"];
        for key in [
            "expr",
            "for",
            "severity",
            "summary",
            "description",
            "runbook_url",
        ] {
            let there = rule.get(key).is_some_and(|value| !value.is_empty());
            assert!(there, "{name} has no {key}");
        }
        assert!(
            ["warning", "critical"].contains(&rule["severity"].as_str()),
            "{name}"
        );
        let (page, anchor) = rule["runbook_url"].split_once('#').expect("an anchor");
        let text = std::fs::read_to_string(repository().join(page)).expect(page);
        assert!(anchors(&text).contains(anchor), "{page} lacks #{anchor}");
        assert!(text.contains(name), "{page} does not name {name}");
        used.insert((page.to_owned(), anchor.to_owned()));
    }
    assert_eq!(used.len(), rules().len(), "a section for each");
}

/// A rule that no test fires is not done.
#[test]
fn every_alert_is_fired_by_a_test() {
    let written: BTreeSet<_> = rules()
        .into_iter()
        .map(|rule| rule["alert"].clone())
        .collect();
    let fired = replicas::FIRED.iter().chain(disks::FIRED);
    let fired = fired.chain(groups::FIRED);
    let fired: BTreeSet<_> = fired.map(|name| (*name).to_owned()).collect();
    assert_eq!(written, fired);
}

/// A plane that nobody scrapes has no alarms.
#[test]
fn the_scrape_jobs_name_every_plane() {
    let page = repository().join("deploy/alerts/README.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for (plane, port) in [
        ("controller", 7091),
        ("storage", 7092),
        ("coordinator", 7093),
        ("gateway", 7080),
    ] {
        let job = page.split("- job_name: ").find_map(|job| {
            let rest = job.strip_prefix(&format!("talweg-{plane}\n"))?;
            rest.lines().next()
        });
        let targets = job.unwrap_or_else(|| panic!("no job talweg-{plane}"));
        assert!(
            targets.contains(&format!(":{port}\"")),
            "{plane}: {targets}"
        );
    }
}

#[test]
fn shortening_changes_nothing_but_the_waits() {
    for file in rule_files() {
        let text = std::fs::read_to_string(&file).expect("a rule file");
        let short = shortened(&text);
        let differs: Vec<_> = text
            .lines()
            .zip(short.lines())
            .filter(|(a, b)| a != b)
            .collect();
        assert_eq!(text.lines().count(), short.lines().count());
        assert!(
            differs.iter().all(|(_, b)| b.trim() == "for: 1s"),
            "{differs:?}"
        );
    }
}
