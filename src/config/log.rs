//! Where and how to log.

use std::path::PathBuf;

use serde_json::Value;

use super::sources::Values;
use super::{ConfigError, Level, LogConfig, LogFormat, LogOutput, Rotation};

/// The size at which a file is set aside when none is given, in MiB.
const ROTATED_AT_MIB: u64 = 100;

pub(super) fn build(values: &Values) -> Result<LogConfig, ConfigError> {
    match values.text("logger") {
        "zap" => {}
        "capnslog" => return Err(ConfigError::new("--logger=capnslog is removed in v3.5")),
        other => return Err(ConfigError::new(format!("unknown logger option {other:?}"))),
    }
    let level = match values.text("log-level") {
        "debug" | "DEBUG" => Level::Debug,
        "info" | "INFO" | "" => Level::Info,
        "warn" | "WARN" => Level::Warn,
        "error" | "ERROR" | "dpanic" | "DPANIC" | "panic" | "PANIC" | "fatal" | "FATAL" => {
            Level::Error
        }
        other => return Err(ConfigError::new(format!("unrecognized level: {other:?}"))),
    };
    let format = match values.text("log-format") {
        "json" | "" => LogFormat::Json,
        "console" => LogFormat::Console,
        other => {
            return Err(ConfigError::new(format!(
                "unknown log format: {other}, supported values json, console"
            )));
        }
    };
    let names = values.list("log-outputs");
    if names.len() > 1 && names.iter().any(|name| name == "default") {
        return Err(ConfigError::new("multi logoutput for \"default\" is not supported yet"));
    }
    let mut outputs = Vec::new();
    for name in &names {
        outputs.push(match name.as_str() {
            "default" | "stderr" => LogOutput::Stderr,
            "stdout" => LogOutput::Stdout,
            // The journal reads the standard error of services.
            "systemd/journal" => LogOutput::Stderr,
            "/dev/null" => continue,
            "" => return Err(ConfigError::new("--log-outputs has an empty entry")),
            path => LogOutput::File(PathBuf::from(path)),
        });
    }
    outputs.sort();
    outputs.dedup();
    if names.is_empty() {
        outputs.push(LogOutput::Stderr);
    }
    let rotation = if values.switch("enable-log-rotation") {
        Some(rotation(values.text("log-rotation-config-json"), &outputs)?)
    } else {
        None
    };
    Ok(LogConfig { level, format, outputs, rotation })
}

/// What etcd takes: an object with any of five members, of which other cases of the letters are
/// understood too and unknown ones passed over.
fn rotation(json: &str, outputs: &[LogOutput]) -> Result<Rotation, ConfigError> {
    let files = outputs.iter().filter(|output| matches!(output, LogOutput::File(_))).count();
    if files > 1 || (files == 0 && outputs.len() == 1) {
        return Err(ConfigError::new(
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ));
    }
    let value: Value = serde_json::from_str(json).map_err(|why| {
        ConfigError::new(format!("improperly formatted log rotation config: {why}"))
    })?;
    let invalid = |why: String| ConfigError::new(format!("invalid log rotation config: {why}"));
    let members = value.as_object().ok_or_else(|| invalid("not an object".to_owned()))?;
    let mut rotation = Rotation {
        max_size_mib: 0,
        max_age_days: 0,
        max_backups: 0,
        local_time: false,
        compress: false,
    };
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        let number =
            || value.as_u64().ok_or_else(|| invalid(format!("{name} must be a number, 0 or more")));
        let switch =
            || value.as_bool().ok_or_else(|| invalid(format!("{name} must be true or false")));
        match name.to_ascii_lowercase().as_str() {
            "maxsize" => rotation.max_size_mib = number()?,
            "maxage" => rotation.max_age_days = number()?,
            "maxbackups" => rotation.max_backups = number()?,
            "localtime" => rotation.local_time = switch()?,
            "compress" => rotation.compress = switch()?,
            _ => {}
        }
    }
    if rotation.max_size_mib == 0 {
        rotation.max_size_mib = ROTATED_AT_MIB;
    }
    Ok(rotation)
}
