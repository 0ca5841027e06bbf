//! Flags that change nothing because of other flags, or of other flags that are missing: a line for each, as somebody
//! may count on them. etcd passes over most of these without a word.

use super::backend::{ALONE, Backend};
use super::sources::Values;
use super::tls::{CertificateSource, TlsConfig};
use super::value::{gate_default, gates};
use super::{Config, ConfigError, Level, Note, TokenConfig};

/// Flags, how much it matters that they change nothing, and why they don't.
type Idle = (&'static [&'static str], Level, &'static str);

const NO_TLS: &[Idle] = &[
    (&["trusted-ca-file", "client-crl-file", "client-cert-allowed-hostname"], Level::Warn, PLAIN),
    (
        &["cipher-suites", "tls-min-version", "tls-max-version", "self-signed-cert-validity"],
        Level::Info,
        PLAIN,
    ),
];
const PLAIN: &str = "nothing is served over TLS";
const NO_AUTHORITY: &[Idle] = &[(
    &["client-crl-file", "client-cert-allowed-hostname"],
    Level::Warn,
    "clients are asked for certificates with --trusted-ca-file only",
)];
const FROM_FILES: &[Idle] =
    &[(&["self-signed-cert-validity"], Level::Info, "no certificate is generated")];
const NO_ROTATION: &[Idle] =
    &[(&["log-rotation-config-json"], Level::Info, "--enable-log-rotation is off")];
const NO_TRACING: &[Idle] = &[(
    &[
        "distributed-tracing-address",
        "distributed-tracing-service-name",
        "distributed-tracing-instance-id",
        "distributed-tracing-sampling-rate",
    ],
    Level::Info,
    "--enable-distributed-tracing is off",
)];
const NO_AUDIT: &[Idle] = &[(&["audit-log-level"], Level::Warn, "--audit-log is off")];
const OTHER_TOKENS: &[Idle] = &[(
    &["auth-token-ttl"],
    Level::Warn,
    "only simple tokens go by it; --auth-token says otherwise",
)];
const NO_COMPARISON: &[Idle] =
    &[(&["compact-hash-check-time"], Level::Info, "the feature gate CompactHashCheck is off")];

/// Gates that do something on a cluster.
const COMPARING: [&str; 3] = ["AllAlpha", "CompactHashCheck", "InitialCorruptCheck"];

/// Adds a note for each flag and feature gate that was given and changes nothing.
pub(super) fn note(values: &Values, config: &mut Config) {
    let alone = config.backend == Backend::Local;
    let simple = matches!(config.auth.token, TokenConfig::Simple { .. });
    let idle = [
        (!values.switch("enable-log-rotation"), NO_ROTATION),
        (config.tracing.is_none(), NO_TRACING),
        (config.audit.is_none(), NO_AUDIT),
        (!simple, OTHER_TOKENS),
        (!alone && config.comparisons.after_compactions.is_none(), NO_COMPARISON),
    ];
    let idle = idle.into_iter().filter(|(off, _)| *off).flat_map(|(_, idle)| idle);
    for (names, level, reason) in idle.chain(of_tls(config.tls.as_ref())) {
        let given = |name: &&&str| values.is_set(name) && !values.is_default(name);
        for name in names.iter().filter(given) {
            let note = Note::new(*level, "flag accepted without effect");
            config.notes.push(note.with("flag", format!("--{name}")).with("reason", *reason));
        }
    }
    for (name, on) in gates(values.text("feature-gates")) {
        let reason = match COMPARING.contains(&name) {
            true if alone => ALONE,
            true => continue,
            false => "it switches a part of etcd that is not here",
        };
        if on != gate_default(name) {
            let note = Note::new(Level::Info, "feature gate accepted without effect");
            config.notes.push(note.with("feature-gate", name).with("reason", reason));
        }
    }
}

fn of_tls(tls: Option<&TlsConfig>) -> impl Iterator<Item = &'static Idle> {
    let authority = tls.is_some_and(|tls| tls.trusted_ca.is_some());
    let files = |tls: &TlsConfig| matches!(tls.certificate, CertificateSource::Files { .. });
    let idle = [
        (tls.is_none(), NO_TLS),
        (tls.is_some() && !authority, NO_AUTHORITY),
        (tls.is_some_and(files), FROM_FILES),
    ];
    idle.into_iter().filter(|(off, _)| *off).flat_map(|(_, idle)| idle)
}

/// What etcd refuses of feature gates that are known.
pub(super) fn check_gates(values: &Values) -> Result<(), ConfigError> {
    let on = |name| super::value::alpha_gate(values.text("feature-gates"), name);
    if on("LeaseCheckpointPersist") && !on("LeaseCheckpoint") {
        return Err(ConfigError::new(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint",
        ));
    }
    Ok(())
}
