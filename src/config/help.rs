//! What `--help` and `--version` print, and the page about flags, all from the declarations.

use std::fmt::Write;

use super::flags::{Effect, FLAGS, Flag, Group};
use super::value::Kind;
use super::{ETCD_VERSION, VERSION};

/// What there is to know of `leaseway health`.
pub const HEALTH: &str = concat!(
    "\
\x20 leaseway health [--endpoint http://127.0.0.1:2379]
    Ask a running server whether it is ready (/readyz): exit code 0 if it is, else 1 and one line that
    says why.

      --endpoint URL     Where it is. Without a scheme: https if there is a flag for TLS, else http.
      --timeout 8s       How long to wait for the answer.
",
    super::asking::tls_help!(),
);

/// What the commands beside the server are for, in short.
const COMMANDS: &str = "\
\x20 leaseway health
    Ask a running server whether it is ready.

\x20 leaseway import SNAPSHOT|DIRECTORY --data-dir DIR
\x20 leaseway import --from-endpoint URL [--follow] --data-dir DIR
    Move in from etcd: a saved snapshot, the data directory of an etcd that is stopped, or a running etcd.

\x20 leaseway export FILE [--endpoint URL | --data-dir DIR]
    Move out to etcd, or make a backup.

\x20 leaseway restore SNAPSHOT [--data-dir DIR]
    Start again from a backup.

\x20 leaseway health|import|export|restore --help
    Show what each of these does and which flags it has.
";

/// What a command tells of itself.
pub fn command_text(about: &str) -> String {
    format!("Usage:\n\n{about}")
}

/// The text of `--help`.
pub fn help_text() -> String {
    let mut out = String::from(
        "Usage:\n\n\
         \x20 leaseway [flags]\n    Start the server.\n\n\
         \x20 leaseway --version\n    Show the versions.\n\n\
         \x20 leaseway -h | --help\n    Show this text.\n\n",
    );
    out.push_str(COMMANDS);
    out.push_str(
        "\n\x20 leaseway --config-file FILE\n    Read the configuration from a YAML file; other flags and \
         environment variables are then ignored.\n    Keys are the names of the flags; durations are \
         nanoseconds, or texts such as \"10m\".\n\n\
         The flags are etcd's. Each may also be given as an environment variable: --data-dir as \
         ETCD_DATA_DIR.\n\n",
    );
    for group in Group::ALL {
        let _ = writeln!(out, "{}:", group.title());
        for flag in in_group(group) {
            let _ = writeln!(out, "  --{} '{}'", flag.name, flag.default);
            let _ = writeln!(out, "    {}", flag.help);
            if let Effect::Ignored(reason) = flag.effect {
                let _ = writeln!(out, "    Accepted without effect: {reason}.");
            }
        }
        out.push('\n');
    }
    out
}

/// The text of `--version`: first, as test tools expect it, the etcd it is compatible with.
pub fn version_text() -> String {
    format!(
        "etcd Version: {ETCD_VERSION}\nLeaseway Version: {VERSION}\nOS/Arch: {}/{}\n",
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

/// The page about flags, in Markdown.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Flags\n\n\
         The flags are those of etcd 3.7 and a few of Leaseway's own. Each may be given as\n\
         `--flag=value` or `--flag value`, with one dash or two; as the environment variable in the\n\
         table (not together with the flag: that is an error); or under its key in a YAML file named\n\
         by `--config-file` or `ETCD_CONFIG_FILE`, which then replaces flags and variables\n\
         altogether. Durations in the file are nanoseconds or texts such as `10m`.\n\n\
         *Effect* says what the server does with a flag. Ignored flags are still checked, and each\n\
         that is given leaves a line in the log. An unknown flag is an error.\n\n\
         This page is generated from the declarations in `src/config/table.rs`\n\
         (`UPDATE_DOCS=1 cargo test --test flags`).\n",
    );
    for group in Group::ALL {
        let _ = write!(
            out,
            "\n## {}\n\n| Flag | Default | Variable and key | Effect | |\n|---|---|---|---|---|\n",
            group.title()
        );
        for flag in in_group(group) {
            let key = flag.yaml_key();
            let key = if key == flag.name { String::new() } else { format!(", `{key}`") };
            let _ = writeln!(
                out,
                "| `--{}` ({}) | {} | `{}`{key} | {} | {} |",
                flag.name,
                kind_name(flag.kind),
                if flag.default.is_empty() { String::new() } else { format!("`{}`", flag.default) },
                flag.variable(),
                match flag.effect {
                    Effect::Honoured => "honoured".to_owned(),
                    Effect::Ignored(reason) => format!("ignored: {reason}"),
                    Effect::NotDone(reason) => format!("**not done**, with a warning: {reason}"),
                },
                flag.help.replace('|', "\\|"),
            );
        }
    }
    out
}

fn in_group(group: Group) -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().filter(move |flag| flag.group == group)
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "yes or no",
        Kind::Text => "text",
        Kind::Int | Kind::Uint | Kind::Uint32 => "number",
        Kind::Duration => "duration",
        Kind::Urls(_) => "URLs",
        Kind::List => "list",
        Kind::Choice(_) | Kind::Choices(_) => "choice",
        Kind::Gates => "gates",
        Kind::Retired => "retired",
    }
}
