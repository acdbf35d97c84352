//! Configuration in layers: defaults < file < environment < flags.
//!
//! A process describes its settings as one serde struct with defaults. Unknown
//! keys and values that do not fit are refused at start, by name and with where
//! they came from. Durations are plain `*_ms`, sizes plain `*_bytes`.
//!
//! ```text
//! file          TOML, --config FILE                     grpc = "0.0.0.0:7070"
//! environment   TALWEG_<PROCESS>__<KEY>, "__" nests      TALWEG_GATEWAY__TELEMETRY__LOG_FORMAT=json
//! flags         --set key=value, and the process's own  --set telemetry.log_format=json
//! ```
//! Where a setting is text or a list, environment and flags take it as written
//! (a list with commas); anything else is read as a TOML value.

mod error;
mod layers;
mod render;

#[cfg(test)]
mod tests;

pub use error::{ConfigError, Problem};

use clap::Args;
use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
};
use layers::Texts;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};

/// The settings of a process.
///
/// `Default` gives every setting's default; fields must be serialized under
/// the names that they are read by.
pub trait ProcessConfig: Serialize + DeserializeOwned + Default {
    /// Lower case; names the environment variables ("gateway": `TALWEG_GATEWAY__...`).
    const PROCESS: &'static str;

    /// Checks values and how they go together.
    ///
    /// # Errors
    /// The key at fault and why.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }
}

/// Flags that every process takes; flatten it into the process's own.
#[derive(Args, Clone, Default, Debug)]
pub struct CommonArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the settings in force and where each came from, and exit
    #[arg(long)]
    pub print_config: bool,
    /// Set one configuration key; may repeat
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("must be KEY=VALUE".into()),
    }
}

/// Settings, and where each came from.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The settings in force.
    pub value: T,
    /// Source of each leaf, by dotted key: "default", "file /etc/x.toml",
    /// "environment TALWEG_...", "flag".
    pub sources: BTreeMap<String, String>,
}

impl<T: Serialize> Loaded<T> {
    /// As TOML, with a comment after each value saying where it came from.
    pub fn render(&self) -> String {
        let value = serde_json::to_value(&self.value).unwrap_or_default();
        render::toml(&value, &self.sources)
    }
}

/// Loads the settings of a process. `flags` are the process's own flags as
/// (dotted key, value); `None` was not given. They win over `--set`.
///
/// # Errors
/// Everything that is wrong, each with its key and source.
pub fn load<T: ProcessConfig>(
    args: &CommonArgs,
    flags: &[(&str, Option<String>)],
) -> Result<Loaded<T>, ConfigError> {
    load_from(args, flags, std::env::vars_os())
}

/// As [`load`], with the environment given.
pub(crate) fn load_from<T: ProcessConfig>(
    args: &CommonArgs,
    flags: &[(&str, Option<String>)],
    environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Result<Loaded<T>, ConfigError> {
    let defaults = T::default();
    let shape = serde_json::to_value(&defaults).unwrap_or_default();
    let mut figment = Figment::new().merge(Serialized::defaults(&defaults));
    if let Some(file) = &args.config {
        // figment takes a missing file for an empty one.
        std::fs::metadata(file).map_err(|error| ConfigError::file(T::PROCESS, file, &error))?;
        figment = figment.merge(Toml::file_exact(file));
    }
    let prefix = layers::environment_prefix(T::PROCESS);
    let env = layers::from_environment(&prefix, environment);
    let set = args.set.iter().cloned();
    let own = flags
        .iter()
        .filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)));
    figment = figment
        .merge(Texts::new(layers::ENVIRONMENT, env, &shape))
        .merge(Texts::new(layers::FLAG, set.chain(own), &shape));

    let source = |key: &str| layers::source(&figment, &prefix, key);
    let value: T = figment
        .extract()
        .map_err(|error| ConfigError::values(T::PROCESS, &prefix, error))?;
    let taken = serde_json::to_value(&value).unwrap_or_default();
    let given: Value = figment
        .extract()
        .map_err(|error| ConfigError::values(T::PROCESS, &prefix, error))?;
    let mut unknown = Vec::new();
    layers::unknown_keys(&given, &taken, "", &mut unknown);
    if !unknown.is_empty() {
        return Err(ConfigError::unknown(T::PROCESS, unknown, source));
    }
    value
        .check()
        .map_err(|problem| ConfigError::check(T::PROCESS, problem, source))?;

    let mut keys = Vec::new();
    layers::leaves(&taken, "", &mut keys);
    let sources = keys.into_iter().map(|key| {
        let from = source(&key);
        (key, from)
    });
    Ok(Loaded {
        sources: sources.collect(),
        value,
    })
}
