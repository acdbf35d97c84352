//! Layers, refusals by name, and where each value came from.

use super::*;
use serde::Deserialize;
use std::{ffi::OsString, io::Write};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
struct Example {
    grpc: String,
    controllers: Vec<String>,
    threads: u32,
    rack: Option<String>,
    ratio: f64,
    verbose: bool,
    limits: Limits,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
struct Limits {
    batch_bytes: u64,
    timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_bytes: 1024,
            timeout_ms: 30_000,
        }
    }
}

impl Default for Example {
    fn default() -> Self {
        Self {
            grpc: "127.0.0.1:7070".into(),
            controllers: vec!["http://127.0.0.1:7071".into()],
            threads: 2,
            rack: None,
            ratio: 0.5,
            verbose: false,
            limits: Limits::default(),
        }
    }
}

impl ProcessConfig for Example {
    const PROCESS: &'static str = "example";

    fn check(&self) -> Result<(), Problem> {
        match self.limits.timeout_ms {
            0 => Err(Problem::new("limits.timeout_ms", "must be above 0")),
            _ => Ok(()),
        }
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

fn args(file: Option<&tempfile::NamedTempFile>, set: &[(&str, &str)]) -> CommonArgs {
    CommonArgs {
        config: file.map(|it| it.path().to_owned()),
        print_config: false,
        set: set
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect(),
    }
}

fn load(args: &CommonArgs, env: &[(&str, &str)]) -> Result<Loaded<Example>, ConfigError> {
    load_with(args, &[], env)
}

fn load_with(
    args: &CommonArgs,
    flags: &[(&str, Option<String>)],
    env: &[(&str, &str)],
) -> Result<Loaded<Example>, ConfigError> {
    let env = env
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    load_from(args, flags, env)
}

#[test]
fn without_anything_the_defaults_are_in_force() {
    let loaded = load(
        &CommonArgs::default(),
        &[("PATH", "/bin"), ("TALWEG_OTHER__GRPC", "x")],
    );
    let loaded = loaded.expect("defaults");
    assert_eq!(loaded.value, Example::default());
    assert!(
        loaded.sources.values().all(|it| it == "default"),
        "{:?}",
        loaded.sources
    );
}

/// file < environment < --set < the process's own flags.
#[test]
fn later_layers_win_and_say_so() {
    let file = file(
        "grpc = 'file'\nthreads = 3\nratio = 0.25\ncontrollers = ['a']\n[limits]\nbatch_bytes = 1\ntimeout_ms = 2\n",
    );
    let env = [
        ("TALWEG_EXAMPLE__GRPC", "env"),
        ("TALWEG_EXAMPLE__THREADS", "4"),
        ("TALWEG_EXAMPLE__LIMITS__TIMEOUT_MS", "5"),
    ];
    let args = args(Some(&file), &[("grpc", "set"), ("threads", "6")]);
    let flags = [("grpc", Some("flag".to_owned())), ("verbose", None)];
    let loaded = load_with(&args, &flags, &env).expect("valid");
    let expected = Example {
        grpc: "flag".into(),
        controllers: vec!["a".into()],
        threads: 6,
        ratio: 0.25,
        limits: Limits {
            batch_bytes: 1,
            timeout_ms: 5,
        },
        ..Default::default()
    };
    assert_eq!(loaded.value, expected);
    let source = |key: &str| loaded.sources[key].as_str();
    assert_eq!(source("grpc"), "flag");
    assert_eq!(
        source("limits.timeout_ms"),
        "environment TALWEG_EXAMPLE__LIMITS__TIMEOUT_MS"
    );
    assert_eq!(
        source("limits.batch_bytes"),
        format!("file {}", file.path().display())
    );
    assert_eq!(source("verbose"), "default");
    assert_eq!(source("rack"), "default");
}

/// Text stays text even where it looks like something else; lists need no quotes.
#[test]
fn text_and_lists_are_taken_as_written() {
    let set = [
        ("grpc", "7070"),
        ("controllers", "http://a:1, http://b:2"),
        ("rack", "r1"),
        ("verbose", "true"),
        ("ratio", "1"),
    ];
    let value = load(&args(None, &set), &[]).expect("valid").value;
    assert_eq!(value.grpc, "7070");
    assert_eq!(value.controllers, ["http://a:1", "http://b:2"]);
    assert_eq!(value.rack.as_deref(), Some("r1"));
    assert!(value.verbose);
    assert_eq!(value.ratio, 1.0);
    let bracketed = [("controllers", "[\"x\", \"y\"]")];
    assert_eq!(
        load(&args(None, &bracketed), &[])
            .expect("valid")
            .value
            .controllers,
        ["x", "y"]
    );
}

/// Each refusal names the key and where it came from.
#[test]
fn what_does_not_fit_is_refused_by_name() {
    let unknown_in_file = file("grpcc = 'x'\n[limits]\nbatch = 1\n");
    let bad_in_file = file("threads = 'many'\n");
    let not_toml = file("threads = = 1\n");
    let path = |file: &tempfile::NamedTempFile| format!("file {}", file.path().display());
    type Case<'a> = (CommonArgs, Vec<(&'a str, &'a str)>, Vec<String>);
    let cases: Vec<Case> = vec![
        (
            args(Some(&unknown_in_file), &[]),
            vec![],
            vec![
                "grpcc: unknown key".into(),
                "limits.batch: unknown key".into(),
                path(&unknown_in_file),
            ],
        ),
        (
            args(Some(&bad_in_file), &[]),
            vec![],
            vec!["threads: ".into(), path(&bad_in_file)],
        ),
        (args(Some(&not_toml), &[]), vec![], vec![path(&not_toml)]),
        (
            args(None, &[]),
            vec![("TALWEG_EXAMPLE__THREAD", "1")],
            vec!["thread: unknown key (environment TALWEG_EXAMPLE__THREAD)".into()],
        ),
        (
            args(None, &[]),
            vec![("TALWEG_EXAMPLE__THREADS", "-1")],
            vec![
                "threads: ".into(),
                "environment TALWEG_EXAMPLE__THREADS".into(),
            ],
        ),
        (
            args(None, &[("limits.x", "1")]),
            vec![],
            vec!["limits.x: unknown key (flag)".into()],
        ),
        (
            args(None, &[("limits", "1")]),
            vec![],
            vec!["limits: ".into(), "(flag)".into()],
        ),
        (
            args(None, &[("grpc.x", "1")]),
            vec![],
            vec!["grpc: ".into(), "(flag)".into()],
        ),
        (
            args(None, &[("limits.timeout_ms", "0")]),
            vec![],
            vec!["limits.timeout_ms: must be above 0 (flag)".into()],
        ),
    ];
    for (args, env, words) in cases {
        let error = load(&args, &env).expect_err("refused").to_string();
        for word in words {
            assert!(error.contains(&word), "{error:?} lacks {word:?}");
        }
    }
}

/// A file that was asked for and is not there is no empty file.
#[test]
fn a_missing_file_is_refused() {
    let args = CommonArgs {
        config: Some("/nonexistent/talweg.toml".into()),
        ..Default::default()
    };
    let error = load(&args, &[]).expect_err("refused").to_string();
    assert!(error.contains("/nonexistent/talweg.toml"), "{error}");
}

/// What is printed can be used as a file and means the same.
#[test]
fn the_printed_settings_are_a_file_with_the_same_settings() {
    let set = [
        ("limits.timeout_ms", "7"),
        ("grpc", "a \"quoted\" # text"),
        ("ratio", "2"),
    ];
    let loaded = load(&args(None, &set), &[]).expect("valid");
    let text = loaded.render();
    assert!(text.contains("timeout_ms = 7"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("threads = 2 ") && line.ends_with("# default"))
    );
    assert!(
        text.lines()
            .any(|line| line.starts_with("ratio = ") && line.ends_with("# flag"))
    );
    let again = load(&args(Some(&file(&text)), &[]), &[]).expect("a valid file");
    assert_eq!(again.value, loaded.value);
}

#[test]
fn flags_are_parsed() {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        common: CommonArgs,
    }
    use clap::Parser;
    let cli = Cli::try_parse_from(["x", "--set", "a=b=c", "--print-config"]).expect("valid");
    assert_eq!(cli.common.set, [("a".to_owned(), "b=c".to_owned())]);
    assert!(cli.common.print_config);
    Cli::try_parse_from(["x", "--set", "a"])
        .map(drop)
        .expect_err("no value");
}
