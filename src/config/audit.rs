//! The flags of the audit log.

use super::sources::Values;
use super::{AuditConfig, AuditLevel, AuditOutput, ConfigError};
use std::path::PathBuf;

/// What the flags say; none when there is to be no audit log.
pub(super) fn build(values: &Values) -> Result<Option<AuditConfig>, ConfigError> {
    let output = match values.text("audit-log") {
        "off" => return Ok(None),
        "stderr" => AuditOutput::Stderr,
        // Somebody who means to turn it on or off by an empty text is told, not guessed at.
        "" => return Err(ConfigError::new("--audit-log is empty; it takes a file, stderr or off")),
        path => AuditOutput::File(PathBuf::from(path)),
    };
    let level = match values.text("audit-log-level") {
        "all" => AuditLevel::All,
        _ => AuditLevel::Writes,
    };
    Ok(Some(AuditConfig { output, level }))
}
