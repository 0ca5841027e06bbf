//! Flags, environment and configuration file, made into one [`Config`] by a pure function.
//!
//! The flags are declared once, in `table.rs`. As in etcd, a flag wins over its default, a
//! variable does too, the two together are an error, and a configuration file replaces both.
//! Nothing here opens, binds, logs or reads the clock; what should be logged is handed out as
//! [`Note`]s because the log can only be set up once the configuration is known.

pub mod asking;
mod audit;
mod auth;
pub mod backend;
mod build;
pub mod flags;
mod help;
pub mod hint;
mod idle;
mod log;
pub mod options;
mod sources;
pub mod tls;
mod url;
pub mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use help::{HEALTH, command_text, help_text, markdown, version_text};
pub use url::{Endpoint, Place};

/// The version of etcd that this server is compatible with, and reports to clients.
pub const ETCD_VERSION: &str = "3.7.3";
/// The cluster and storage version that goes with [`ETCD_VERSION`].
pub const ETCD_CLUSTER_VERSION: &str = "3.7.0";
/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the server is told to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this member.
    pub name: String,
    /// The directory that holds everything.
    pub data_dir: PathBuf,
    /// Where the log and the sessions are.
    pub backend: backend::Backend,
    /// Where gRPC is served; HTTP too, unless `listen_client_http` names other places for it.
    pub listen_client: Vec<Endpoint>,
    /// Where only HTTP is served; usually empty.
    pub listen_client_http: Vec<Endpoint>,
    /// Where only metrics and health are served; usually empty.
    pub listen_metrics: Vec<Endpoint>,
    /// Client URLs for the member list.
    pub advertise_client: Vec<Endpoint>,
    /// Peer URLs for the member list; nobody listens there.
    pub advertise_peer: Vec<Endpoint>,
    /// Limits on what clients may ask for.
    pub limits: Limits,
    /// Size in bytes at which writes are refused; none is unlimited.
    pub quota_backend_bytes: Option<u64>,
    /// Compaction without being asked.
    pub auto_compaction: AutoCompaction,
    /// Time between progress notifications on idle watches.
    pub watch_progress_notify_interval: Duration,
    /// Bounds on lease times.
    pub lease: LeaseLimits,
    /// Pings on client connections; none sends none.
    pub keepalive: Option<Keepalive>,
    /// Options of the listening sockets.
    pub socket: SocketOptions,
    /// What HTTP requests are let in.
    pub access: Access,
    /// Whether the API is served as JSON too.
    pub json_gateway: bool,
    /// How users show who they are.
    pub auth: AuthConfig,
    /// How TLS is spoken; none if it is spoken nowhere.
    pub tls: Option<tls::TlsConfig>,
    /// What is measured.
    pub metrics: MetricsDetail,
    /// Where the log goes.
    pub log: LogConfig,
    /// Requests taking longer are logged; zero logs none.
    pub warning_unary_request_duration: Duration,
    /// Groups of commands taking longer are logged.
    pub warning_apply_duration: Duration,
    /// Answer before the disk has the data.
    pub unsafe_no_fsync: bool,
    /// Memory for pages of the database file, in bytes.
    pub storage_cache_bytes: usize,
    /// Growth of a replicated log after which there is a new checkpoint, in bytes.
    pub checkpoint_log_bytes: u64,
    /// Where traces of calls go, if anywhere.
    pub tracing: Option<TracingConfig>,
    /// The audit log, if there is one.
    pub audit: Option<AuditConfig>,
    /// Prefixes of keys whose sizes become metrics.
    pub size_prefixes: Vec<String>,
    /// Whether there is a page for people.
    pub enable_ui: bool,
    /// When gateways compare what they hold.
    pub comparisons: Comparisons,
    /// What to log about the configuration once logging works.
    pub notes: Vec<Note>,
}

/// Limits on requests; they act before a command enters the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest command in bytes.
    pub max_request_bytes: usize,
    /// Most operations in one transaction.
    pub max_txn_ops: usize,
    /// Most open streams on a connection; none is unlimited.
    pub max_concurrent_streams: Option<u32>,
}

impl Limits {
    /// Largest gRPC message that is received: a request and half a mebibyte of overhead.
    pub fn max_receive_bytes(&self) -> usize {
        self.max_request_bytes.saturating_add(512 * 1024)
    }
}

/// When gateways compare what they hold. A single server has nobody to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparisons {
    /// Before serving.
    pub at_start: bool,
    /// So often; none is never.
    pub every: Option<Duration>,
    /// So often, if there was a compaction since; none is never.
    pub after_compactions: Option<Duration>,
}

/// When history is compacted without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Never.
    Off,
    /// What is older than this.
    Periodic(Duration),
    /// All but this many revisions, looked at every five minutes.
    Revision(i64),
}

/// Bounds on the time of a lease, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Shorter ones are granted this instead.
    pub min_ttl_s: i64,
    /// Longer ones are refused.
    pub max_ttl_s: i64,
}

/// Pings from the server to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Time between pings.
    pub interval: Duration,
    /// Time to answer one.
    pub timeout: Duration,
}

/// Options of listening sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_REUSEPORT.
    pub reuse_port: bool,
}

/// Which HTTP requests are let in; gRPC is not concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Origins for cross-origin requests; none is all.
    pub cors: Option<Vec<String>>,
    /// Host names; none is all.
    pub hosts: Option<Vec<String>>,
}

/// How users show who they are, once authentication is turned on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// What a user gets for a password.
    pub token: TokenConfig,
    /// Cost of hashing a password, 4 to 31.
    pub bcrypt_cost: u32,
}

/// A kind of token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenConfig {
    /// None: passwords are of no use.
    Off,
    /// Signed with a key that the keyspace holds.
    Simple {
        /// How long one lives after it was given or used.
        ttl: Duration,
    },
    /// JSON Web Tokens.
    Jwt(JwtOptions),
}

/// How JSON Web Tokens are signed and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtOptions {
    /// The method's name in a token, such as `RS256`.
    pub sign_method: String,
    /// File of the key that checks; with a private key it may be left out.
    pub public_key: Option<PathBuf>,
    /// File of the key that signs; without one, tokens can only be checked.
    pub private_key: Option<PathBuf>,
    /// How long one lives.
    pub ttl: Duration,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsDetail {
    /// Counters and the histograms of the disk.
    Basic,
    /// A histogram for each gRPC method as well.
    Extensive,
}

/// Where and how to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The least important level that is logged.
    pub level: Level,
    /// The shape of a line.
    pub format: LogFormat,
    /// Every line goes to each of them.
    pub outputs: Vec<LogOutput>,
    /// When files among them are set aside; none is never.
    pub rotation: Option<Rotation>,
}

/// When a log file is set aside and begun again, and what becomes of those that were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Size in MiB that a file does not grow beyond; at least 1.
    pub max_size_mib: u64,
    /// Days after which one that was set aside is removed; 0 is never.
    pub max_age_days: u64,
    /// How many that were set aside are kept; 0 is all.
    pub max_backups: u64,
    /// Whether their names have the local time; else UTC.
    pub local_time: bool,
    /// Whether they are compressed with gzip.
    pub compress: bool,
}

/// How important a log line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// The shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Tab-separated, for people.
    Console,
}

/// A place for log lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogOutput {
    Stderr,
    Stdout,
    /// Appended to; created when missing.
    File(PathBuf),
}

/// Which calls are traced, and where the traces go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingConfig {
    /// Host and port of an OpenTelemetry collector that speaks OTLP over gRPC.
    pub address: String,
    /// What the traces call this service.
    pub service_name: String,
    /// What they call this process; empty is nothing.
    pub instance_id: String,
    /// How many calls in a million are traced, of those whose caller has not decided; at most a million.
    pub sampled_per_million: u32,
}

/// Where the audit log goes, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// Where it goes.
    pub output: AuditOutput,
    /// What is in it.
    pub level: AuditLevel,
}

/// A place for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOutput {
    Stderr,
    /// Appended to; created when missing, readable by its owner only.
    File(PathBuf),
}

/// What the audit log has lines for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditLevel {
    /// What changes something, and what was refused.
    Writes,
    /// Reads as well.
    All,
}

/// Something about the configuration that belongs in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// How important it is.
    pub level: Level,
    /// What happened.
    pub message: String,
    /// Details, by name.
    pub fields: Vec<(&'static str, String)>,
}

impl Note {
    fn new(level: Level, message: impl Into<String>) -> Note {
        Note { level, message: message.into(), fields: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Note {
        self.fields.push((name, value.into()));
        self
    }
}

/// Why there is no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// One line for a person.
    pub message: String,
    /// What the process should exit with: 2 for a command line that cannot be read, else 1.
    pub exit_code: u8,
    /// What may have been meant, for a person. Apart from the message, which may be one of etcd's texts.
    pub hint: Option<String>,
}

impl ConfigError {
    fn new(message: impl Into<String>) -> ConfigError {
        ConfigError { message: message.into(), exit_code: 1, hint: None }
    }

    fn usage(message: impl Into<String>) -> ConfigError {
        ConfigError { message: message.into(), exit_code: 2, hint: None }
    }

    fn hinting(self, hint: Option<String>) -> ConfigError {
        ConfigError { hint, ..self }
    }
}

/// What the command line asks for.
#[derive(Debug, Clone)]
pub enum Invocation {
    /// Run the server.
    Run(Box<Config>),
    /// Print the versions.
    Version,
    /// Print the flags.
    Help,
}

/// Reads the whole configuration.
///
/// `args` are the arguments after the program's name; `read_file` gives the text of the
/// configuration file, should one be named.
///
/// # Errors
/// One line saying what is wrong, with the exit code for it.
pub fn parse(
    args: &[String],
    env: &BTreeMap<String, String>,
    read_file: impl FnOnce(&str) -> std::io::Result<String>,
) -> Result<Invocation, ConfigError> {
    let (mut values, request) = sources::read_arguments(args)?;
    let config_file = match request {
        sources::Request::Help => return Ok(Invocation::Help),
        sources::Request::Version => return Ok(Invocation::Version),
        sources::Request::Run { config_file } => config_file,
    };
    let config_file = config_file.or_else(|| env.get("ETCD_CONFIG_FILE").cloned());
    let mut notes = Vec::new();
    let from_file = match config_file.filter(|path| !path.is_empty()) {
        Some(path) => {
            let text = read_file(&path)
                .map_err(|error| ConfigError::new(format!("configuration file {path}: {error}")))?;
            notes.push(
                Note::new(
                    Level::Info,
                    "loaded the configuration file; other flags and environment variables are ignored",
                )
                .with("path", &path),
            );
            values = sources::read_file(&path, &text, &mut notes)?;
            true
        }
        None => {
            sources::read_environment(&mut values, env, &mut notes)?;
            false
        }
    };
    notes.extend(values.ignored());
    build::build(&values, from_file, notes).map(|config| Invocation::Run(Box::new(config)))
}

#[cfg(test)]
mod tests;
