//! The one declaration of every flag.
//!
//! Name, environment variable, configuration file key, type, default, help, and what the server
//! does with it all come from the rows below; parsing, `--help` and `docs/flags.md` read them.
//! The names and defaults are etcd's, so that an existing command line, manifest or unit file
//! works as it is.

use super::value::Kind;

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// The name on the command line, without dashes.
    pub name: &'static str,
    /// How a value is read and checked.
    pub kind: Kind,
    /// The value when nothing is given, in the same notation as on the command line.
    pub default: &'static str,
    /// What the server does with it.
    pub effect: Effect,
    /// Where the help lists it.
    pub group: Group,
    /// One sentence for people.
    pub help: &'static str,
}

/// What giving a flag changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The server does what the flag says.
    Honoured,
    /// The value is checked and then ignored, with a line in the log; the text says why.
    Ignored(&'static str),
    /// The same, but somebody may count on what is not done: the line is a warning.
    NotDone(&'static str),
}

/// The sections of the help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Member,
    Clustering,
    Security,
    Auth,
    Monitoring,
    Logging,
    Tracing,
    Features,
    Unsafe,
    /// Flags that etcd does not have.
    Own,
    /// Names that etcd still accepts from its past and ignores; left out of the help.
    Retired,
}

impl Group {
    /// Every group, in the order of the help text.
    pub const ALL: [Group; 10] = [
        Group::Member,
        Group::Clustering,
        Group::Security,
        Group::Auth,
        Group::Monitoring,
        Group::Logging,
        Group::Tracing,
        Group::Features,
        Group::Unsafe,
        Group::Own,
    ];

    /// The heading of the group.
    pub fn title(self) -> &'static str {
        match self {
            Group::Member => "Member",
            Group::Clustering => "Clustering",
            Group::Security => "Security",
            Group::Auth => "Auth",
            Group::Monitoring => "Profiling and Monitoring",
            Group::Logging => "Logging",
            Group::Tracing => "Distributed tracing",
            Group::Features => "Features",
            Group::Unsafe => "Unsafe feature",
            Group::Own => "Only here, not in etcd",
            Group::Retired => "Retired",
        }
    }
}

impl Flag {
    /// The environment variable that sets this flag.
    pub fn variable(&self) -> String {
        let mut name = String::from("ETCD_");
        name.extend(self.name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() }));
        name
    }

    /// The key in the configuration file; a dot separates a section from the key inside it.
    pub fn yaml_key(&self) -> &'static str {
        YAML_KEYS.iter().find(|(flag, _)| *flag == self.name).map_or(self.name, |(_, key)| key)
    }
}

/// The flag with this name.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Flags whose key in the configuration file is not their name.
const YAML_KEYS: &[(&str, &str)] = &[
    ("cert-file", "client-transport-security.cert-file"),
    ("key-file", "client-transport-security.key-file"),
    ("client-cert-file", "client-transport-security.client-cert-file"),
    ("client-key-file", "client-transport-security.client-key-file"),
    ("client-cert-auth", "client-transport-security.client-cert-auth"),
    ("client-cert-allowed-hostname", "client-transport-security.allowed-hostname"),
    ("trusted-ca-file", "client-transport-security.trusted-ca-file"),
    ("auto-tls", "client-transport-security.auto-tls"),
    ("peer-cert-file", "peer-transport-security.cert-file"),
    ("peer-key-file", "peer-transport-security.key-file"),
    ("peer-client-cert-file", "peer-transport-security.client-cert-file"),
    ("peer-client-key-file", "peer-transport-security.client-key-file"),
    ("peer-client-cert-auth", "peer-transport-security.client-cert-auth"),
    ("peer-trusted-ca-file", "peer-transport-security.trusted-ca-file"),
    ("peer-cert-allowed-cn", "peer-transport-security.allowed-cn"),
    ("peer-cert-allowed-hostname", "peer-transport-security.allowed-hostname"),
    ("peer-auto-tls", "peer-transport-security.auto-tls"),
    ("peer-skip-client-san-verification", "peer-transport-security.skip-client-san-verification"),
    ("socket-reuse-port", "socket-options.reuse-port"),
    ("socket-reuse-address", "socket-options.reuse-address"),
    ("discovery-endpoints", "discovery-config.endpoints"),
    ("discovery-token", "discovery-config.token"),
];

const RAFT: Effect = Effect::Ignored("a single process has no peers and no raft log");
const ENGINE: Effect = Effect::Ignored("the storage engine here has no such setting");
const NO_SELF: Effect = Effect::Ignored("the server makes no connections to itself");
const NO_PEER_TLS: Effect = Effect::Ignored("no peer listener is opened");
const NO_DISCOVERY: Effect = Effect::Ignored("a single process has nothing to discover");
const NO_PROFILER: Effect = Effect::Ignored("there is no profiler endpoint");
const HONOURED: Effect = Effect::Honoured;

const fn flag(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    effect: Effect,
    group: Group,
    help: &'static str,
) -> Flag {
    Flag { name, kind, default, effect, group, help }
}

const fn retired(name: &'static str) -> Flag {
    flag(
        name,
        Kind::Retired,
        "",
        Effect::Ignored("etcd no longer supports it either"),
        Group::Retired,
        "No longer supported.",
    )
}

include!("table.rs");
