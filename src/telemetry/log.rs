//! The log: one line an event, in the shape that etcd's log has, so that what reads etcd's logs
//! reads these. Never any colours, so nothing has to be turned off.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::rotate::RotatingFile;
use crate::config::{Level, LogConfig, LogFormat, LogOutput, Note, Rotation};

/// Starts the log of the process.
///
/// # Errors
/// A log file that cannot be opened (with its name), or a log that was started before.
pub fn start(config: &LogConfig) -> io::Result<()> {
    let open = |output| Output::open(output, config.rotation);
    let outputs = config.outputs.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    let lines = Lines { format: config.format, outputs: Mutex::new(outputs) };
    let level = match config.level {
        Level::Debug => LevelFilter::DEBUG,
        Level::Info => LevelFilter::INFO,
        Level::Warn => LevelFilter::WARN,
        Level::Error => LevelFilter::ERROR,
    };
    // What libraries say is of interest only when it is a complaint.
    let filter =
        Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("leaseway", level);
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)
}

/// Writes what the configuration has to say.
pub fn write_notes(notes: &[Note]) {
    for Note { level, message, fields } in notes {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("\"{name}\":{}", quoted(value))).collect();
        let made = fields.join(",");
        match level {
            Level::Debug => tracing::debug!(made, "{message}"),
            Level::Info => tracing::info!(made, "{message}"),
            Level::Warn => tracing::warn!(made, "{message}"),
            Level::Error => tracing::error!(made, "{message}"),
        }
    }
}

/// The field whose text is the inside of an object already: the names of other fields are fixed where
/// the code is compiled.
const MADE: &str = "made";

#[derive(Debug)]
enum Output {
    Stderr,
    Stdout,
    File(File),
    Rotating(RotatingFile),
}

impl Output {
    fn open(output: &LogOutput, rotation: Option<Rotation>) -> io::Result<Output> {
        match output {
            LogOutput::Stderr => Ok(Output::Stderr),
            LogOutput::Stdout => Ok(Output::Stdout),
            LogOutput::File(path) => {
                let opened = match rotation {
                    Some(rotation) => RotatingFile::open(path, rotation).map(Output::Rotating),
                    None => {
                        let file = OpenOptions::new().create(true).append(true).open(path);
                        file.map(Output::File)
                    }
                };
                opened.map_err(|error| {
                    let why = format!("log file {}: {error}", path.display());
                    io::Error::new(error.kind(), why)
                })
            }
        }
    }

    /// Writes a whole line at once. A log that cannot be written must not stop the server.
    fn write(&mut self, line: &[u8], now: SystemTime) {
        let _ = match self {
            Output::Stderr => io::stderr().write_all(line),
            Output::Stdout => io::stdout().write_all(line),
            Output::File(file) => file.write_all(line),
            Output::Rotating(file) => file.write(line, now),
        };
    }
}

/// Turns events into lines.
struct Lines {
    format: LogFormat,
    outputs: Mutex<Vec<Output>>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        #[allow(clippy::disallowed_methods, reason = "a log line tells the time of day")]
        let now = SystemTime::now();
        let line = render(self.format, now, event.metadata(), &fields);
        for output in self.outputs.lock().iter_mut() {
            output.write(line.as_bytes(), now);
        }
    }
}

fn render(format: LogFormat, now: SystemTime, meta: &Metadata<'_>, fields: &Fields) -> String {
    let level = match *meta.level() {
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warn",
        tracing::Level::INFO => "info",
        _ => "debug",
    };
    let (time, caller) = (timestamp(now), caller(meta));
    let mut line = String::with_capacity(192);
    let _ = match format {
        LogFormat::Json => write!(
            line,
            "{{\"level\":\"{level}\",\"ts\":\"{time}\",\"caller\":{},\"msg\":{}{}{}}}",
            quoted(&caller),
            quoted(&fields.message),
            if fields.json.is_empty() { "" } else { "," },
            fields.json,
        ),
        LogFormat::Console => {
            let message = fields.message.replace('\n', "\\n");
            let _ = write!(line, "{time}\t{level}\t{caller}\t{message}");
            if fields.json.is_empty() { Ok(()) } else { write!(line, "\t{{{}}}", fields.json) }
        }
    };
    line.push('\n');
    line
}

/// The last folder, file and line where an event was made.
fn caller(meta: &Metadata<'_>) -> String {
    let path = meta.file().unwrap_or(meta.target());
    let start = path.rmatch_indices(['/', '\\']).nth(1).map_or(0, |(at, _)| at + 1);
    format!("{}:{}", &path[start..], meta.line().unwrap_or(0))
}

/// The fields of an event as the inside of a JSON object, the message apart.
#[derive(Default)]
struct Fields {
    message: String,
    json: String,
}

impl Fields {
    fn add(&mut self, field: &Field, json: &str) {
        let comma = if self.json.is_empty() { "" } else { "," };
        // Names use underscores in the code and dashes in the log, as in etcd's.
        let _ = write!(self.json, "{comma}\"{}\":{json}", field.name().replace('_', "-"));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else if field.name() == MADE {
            self.json.push_str(value);
        } else {
            self.add(field, &quoted(value));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, &value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, if value { "true" } else { "false" });
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let text = value.to_string();
        // JSON has no infinities.
        self.add(field, &if value.is_finite() { text } else { quoted(&text) });
    }
}

/// The text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The time in UTC with microseconds, `2026-01-31T23:59:59.000001Z`.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_micros()
    )
}

/// Year, month and day of a day counted from 1 January 1970.
///
/// Years are taken to begin in March, so that a leap day ends one; then a 400-year era, a year
/// in it and a month in that follow from divisions.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days from 1 March of year 0 to 1 January 1970
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_795_981_884, "2026-11-29T19:51:24.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
        assert!(timestamp(UNIX_EPOCH + Duration::from_micros(7)).ends_with(".000007Z"));
    }

    /// A layer that keeps the lines.
    struct Kept(LogFormat, Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.1.lock().push(render(self.0, UNIX_EPOCH, event.metadata(), &fields));
        }
    }

    fn lines(format: LogFormat, log: impl FnOnce()) -> Vec<String> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let subscriber = tracing_subscriber::registry().with(Kept(format, kept.clone()));
        tracing::subscriber::with_default(subscriber, log);
        std::mem::take(&mut *kept.lock())
    }

    #[test]
    fn a_json_line_is_one_object_with_the_fields_of_etcd() {
        let made = lines(LogFormat::Json, || {
            tracing::warn!(data_dir = "a\"b\n", count = 3_u64, took = ?Duration::from_secs(1), ok = true, "hello \u{1b} {}", 1);
        });
        let [line] = &made[..] else { panic!("one line expected: {made:?}") };
        let value: serde_json::Value = serde_json::from_str(line).expect("valid JSON");
        assert_eq!(value["level"], "warn");
        assert_eq!(value["ts"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(value["msg"], "hello \u{1b} 1");
        assert_eq!(value["data-dir"], "a\"b\n");
        assert_eq!((&value["count"], &value["ok"]), (&3.into(), &true.into()));
        assert_eq!(value["took"], "1s");
        let caller = value["caller"].as_str().expect("text");
        assert!(caller.starts_with("telemetry/log.rs:"), "{caller}");
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn a_note_has_its_fields_by_name() {
        let note = Note {
            level: Level::Warn,
            message: "said".into(),
            fields: vec![("flag", "--a\"b".into()), ("reason", "none".into())],
        };
        let made = lines(LogFormat::Json, || write_notes(&[note]));
        let value: serde_json::Value = serde_json::from_str(&made[0]).expect("valid JSON");
        assert_eq!((&value["level"], &value["msg"]), (&"warn".into(), &"said".into()));
        assert_eq!((&value["flag"], &value["reason"]), (&"--a\"b".into(), &"none".into()));
    }

    #[test]
    fn a_console_line_is_separated_by_tabs() {
        let made = lines(LogFormat::Console, || tracing::info!(a = 1, "two\nlines"));
        let parts: Vec<&str> = made[0].trim_end().split('\t').collect();
        assert_eq!(parts[0], "1970-01-01T00:00:00.000000Z");
        assert_eq!((parts[1], parts[3], parts[4]), ("info", "two\\nlines", "{\"a\":1}"));
        assert_eq!(parts.len(), 5);
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_named() {
        let output = LogOutput::File("/nonexistent-dir/log".into());
        let error = Output::open(&output, None).expect_err("no such directory");
        assert!(error.to_string().starts_with("log file /nonexistent-dir/log: "), "{error}");
    }
}
