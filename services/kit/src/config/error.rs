//! What is wrong with a configuration, so that a person can mend it at once.

use super::layers;
use std::{fmt, io, path::Path};

/// A setting that does not fit, as [`ProcessConfig::check`](super::ProcessConfig::check) finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Dotted.
    pub key: String,
    /// Why, in words.
    pub reason: String,
}

impl Problem {
    /// A problem with one key.
    pub fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            reason: reason.into(),
        }
    }
}

/// A configuration that a process does not start with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    process: &'static str,
    /// Each with where it came from.
    problems: Vec<(Problem, String)>,
}

impl ConfigError {
    pub(super) fn file(process: &'static str, file: &Path, error: &io::Error) -> Self {
        let problem = Problem::new("--config", error.to_string());
        Self {
            process,
            problems: vec![(problem, format!("file {}", file.display()))],
        }
    }

    pub(super) fn values(process: &'static str, prefix: &str, error: figment::Error) -> Self {
        let describe = |error: figment::Error| {
            let key = match &error.kind {
                figment::error::Kind::UnknownField(field, _)
                    if error.path.last() != Some(field) =>
                {
                    layers::join(&error.path.join("."), field)
                }
                _ => error.path.join("."),
            };
            let source = error.metadata.as_ref().map_or_else(
                || "default".to_owned(),
                |metadata| layers::describe(metadata, prefix, &key),
            );
            (Problem::new(key, error.kind.to_string()), source)
        };
        Self {
            process,
            problems: error.into_iter().map(describe).collect(),
        }
    }

    pub(super) fn unknown(
        process: &'static str,
        keys: Vec<String>,
        source: impl Fn(&str) -> String,
    ) -> Self {
        let describe = |key: String| {
            let source = source(&key);
            (Problem::new(key, "unknown key"), source)
        };
        Self {
            process,
            problems: keys.into_iter().map(describe).collect(),
        }
    }

    pub(super) fn check(
        process: &'static str,
        problem: Problem,
        source: impl Fn(&str) -> String,
    ) -> Self {
        let source = source(&problem.key);
        Self {
            process,
            problems: vec![(problem, source)],
        }
    }

    /// The problems, each with where the value came from.
    pub fn problems(&self) -> &[(Problem, String)] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration of talweg-{}: ", self.process)?;
        for (index, (problem, source)) in self.problems.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            let Problem { key, reason } = problem;
            match key.as_str() {
                "" => write!(f, "{between}{reason} ({source})")?,
                _ => write!(f, "{between}{key}: {reason} ({source})")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
