//! The flags of commands that ask a running server, etcdctl's: where it is, how it is checked, and what is shown to it.

use super::Endpoint;
use super::options::{Flag, Options, switch, value};
use crate::tls::client::ClientFiles;

/// Flags for `https` and `unixs`.
pub const FLAGS: [Flag; 4] =
    [value("cacert"), value("cert"), value("key"), switch("insecure-skip-tls-verify")];
/// What a help text says of them.
macro_rules! tls_help {
    () => {
        "\
\x20     --cacert FILE      For https: authorities that its certificate must come from; the system's without.
      --cert FILE        A certificate to show, and
      --key FILE         its key.
      --insecure-skip-tls-verify
                         Take whatever certificate it shows.
"
    };
}
pub(crate) use tls_help;

/// Where a server is asked unless told otherwise.
pub const ENDPOINT: &str = "http://127.0.0.1:2379";

/// The files that the flags name.
///
/// # Errors
/// Half of a pair, or a switch that is neither on nor off.
pub fn files(options: &Options) -> Result<ClientFiles, String> {
    let certificate = match (options.get("cert"), options.get("key")) {
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (None, None) => None,
        _ => return Err("--cert and --key belong together".into()),
    };
    let trust_anybody = options.is_on("insecure-skip-tls-verify", false)?;
    Ok(ClientFiles { ca: options.get("cacert").map(Into::into), certificate, trust_anybody })
}

/// The place that is meant by an endpoint: a URL, or host and port, over TLS if there are flags for it.
///
/// # Errors
/// It is none.
pub fn endpoint(text: &str, files: &ClientFiles) -> Result<Endpoint, String> {
    let scheme = if *files == ClientFiles::default() { "http" } else { "https" };
    match text.contains("://") {
        true => Endpoint::parse(text),
        false => Endpoint::parse(&format!("{scheme}://{text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str, args: &[&str]) -> Result<String, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let files = files(&Options::parse(&args, &FLAGS)?)?;
        endpoint(text, &files).map(|url| url.to_string())
    }

    #[test]
    fn the_scheme_says_whether_tls_is_spoken() {
        let anybody = &["--insecure-skip-tls-verify"][..];
        assert_eq!(asked("http://127.0.0.1:1", &[]), Ok("http://127.0.0.1:1".into()));
        assert_eq!(asked("127.0.0.1:1", &[]), Ok("http://127.0.0.1:1".into()));
        assert_eq!(asked("127.0.0.1:1", anybody), Ok("https://127.0.0.1:1".into()));
        assert_eq!(asked("https://127.0.0.1:1", anybody), Ok("https://127.0.0.1:1".into()));
        assert_eq!(asked("http://127.0.0.1:1", anybody), Ok("http://127.0.0.1:1".into()));
        assert!(
            asked("https://127.0.0.1:1", &["--cert=a"]).unwrap_err().contains("belong together")
        );
        assert!(asked("127.0.0.1", &[]).unwrap_err().contains("host:port"));
    }
}
