//! How a command ends when it does not end well.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage. Errors go to standard error:
//! with `--json` as `{"error":{"code","message","retriable","details"}}`, else
//! as one line. A reader of our output that has gone is no failure.

use serde_json::json;
use std::io;
use talweg_kit::errors::{ErrorCode, Refusal};

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// One refusal, from a server or our own.
    Refused(Box<Refusal>),
    /// Everything was reported already, item by item.
    Reported,
    /// Whoever read our standard output has closed it: a quiet, good end.
    OutputClosed,
    /// The options do not make sense together.
    Usage(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl Failure {
    /// A file or folder that was named on the command line and cannot be used.
    pub fn file(path: &std::path::Path, error: &io::Error) -> Self {
        Refusal::new(
            ErrorCode::InvalidArgument,
            format!("{}: {error}", path.display()),
        )
        .with_field("path", error.to_string())
        .into()
    }

    /// Something on this machine failed that is neither the server's nor the user's fault.
    pub fn local(what: &str, error: &io::Error) -> Self {
        Refusal::new(ErrorCode::Internal, format!("{what}: {error}")).into()
    }

    /// Standard output took nothing more.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::local("standard output", error)
        }
    }

    /// Tells it on standard error and gives the exit code.
    pub fn report(&self, json: bool) -> u8 {
        match self {
            Self::Refused(refusal) => {
                eprintln!("{}", error_line(refusal, json));
                1
            }
            Self::Reported => 1,
            Self::OutputClosed => 0,
            Self::Usage(message) => {
                let refusal = Refusal::new(ErrorCode::InvalidArgument, message);
                let line = if json {
                    error_line(&refusal, true)
                } else {
                    format!("error: {message}")
                };
                eprintln!("{line}");
                2
            }
        }
    }
}

/// A refusal as one line for standard error.
pub fn error_line(refusal: &Refusal, json: bool) -> String {
    if json {
        return json!({ "error": refusal.json() }).to_string();
    }
    let retry = if refusal.is_retriable() {
        " (may succeed later)"
    } else {
        ""
    };
    // A sentence from elsewhere stays one line whatever it holds.
    let message = refusal.message.replace(['\n', '\r'], " ");
    format!("error: {message} [{}]{retry}", refusal.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_its_code() {
        let refusal =
            Refusal::new(ErrorCode::OffsetOutOfRange, "offset 9\nis outside").with_bounds(2, 7);
        assert_eq!(
            error_line(&refusal, false),
            "error: offset 9 is outside [OFFSET_OUT_OF_RANGE]"
        );
        let value: serde_json::Value =
            serde_json::from_str(&error_line(&refusal, true)).expect("JSON");
        let error = &value["error"];
        assert_eq!(error["code"], "OFFSET_OUT_OF_RANGE");
        assert_eq!(error["message"], "offset 9\nis outside");
        assert_eq!(error["retriable"], false);
        assert_eq!(
            error["details"],
            json!({"log_start_offset": 2, "high_watermark": 7})
        );
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is_one() {
        assert!(matches!(
            Failure::output(&io::ErrorKind::BrokenPipe.into()),
            Failure::OutputClosed
        ));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::output(&full), Failure::Refused(_)));
    }
}
