//! Start-up, stage by stage.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{IsTerminal as _, Stdout, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leaseway::backend::Halt;
use leaseway::config::backend::Backend;
use leaseway::config::{self, Config, Invocation, LogOutput, MetricsDetail, VERSION};
use leaseway::data_dir::{DataDir, Presence};
use leaseway::gateway::http::{Endpoints, HealthState, ReadFuture};
use leaseway::gateway::listen::{Bound, Traffic};
use leaseway::gateway::serve::{self, App, Gate, Server};
use leaseway::health_check;
use leaseway::lives::{self, Life, Past, Stop};
use leaseway::node::Node;
use leaseway::supervisor::{self, State};
use leaseway::telemetry::{Metrics, log};
use leaseway::tls::server::ServerTls;
use leaseway::transfer::command as transfer;
use leaseway::transfer::help;
use leaseway::vital::{self, Vital};
use tokio::sync::watch;

/// Many threads allocate and free large values here: the C library's allocator makes them wait for each other
/// while it gives memory back, and keeps gigabytes after a burst of large answers if it does not. This
/// one's own threads give memory back, a few seconds after it was freed.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Some((command, about, args)) = command() {
        if args.iter().any(|arg| ["--help", "-help", "-h"].contains(&arg.as_str())) {
            return print(&config::command_text(about));
        }
        return ended(command(&args));
    }
    let config = match configuration() {
        Ok(Invocation::Run(config)) => config,
        Ok(Invocation::Version) => return print(&config::version_text()),
        Ok(Invocation::Help) => return print(&config::help_text()),
        Err(error) => {
            eprintln!("{}", refusal(&error));
            return ExitCode::from(error.exit_code);
        }
    };
    if let Err(error) = log::start(&config.log) {
        eprintln!("leaseway: {error}");
        return ExitCode::FAILURE;
    }
    log::write_notes(&config.notes);
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, logged }) => {
            if !logged {
                tracing::error!("{message}");
            }
            if !config.log.outputs.contains(&LogOutput::Stderr) {
                eprintln!("leaseway: {message}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Why there is no configuration, for a person. The first line after a usage error is etcd's alone.
fn refusal(error: &config::ConfigError) -> String {
    match (&error.hint, error.exit_code) {
        (None, 2) => format!("leaseway: {error}\nRun 'leaseway --help' for the flags."),
        (Some(hint), 2) => {
            format!("leaseway: {error}\n{hint} Run 'leaseway --help' for the flags.")
        }
        (None, _) => format!("leaseway: {error}"),
        (Some(hint), _) => format!("leaseway: {error}. {hint}"),
    }
}

/// The arguments after the program's name. What is not UTF-8 cannot be a flag or one of our variables,
/// and is shown as far as it goes.
fn arguments() -> Vec<String> {
    std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// Does something else than serve.
type Command = fn(&[String]) -> Result<(), String>;

/// What the first argument asks for in place of serving, what there is to know of it, and the arguments behind it.
fn command() -> Option<(Command, &'static str, Vec<String>)> {
    let args = arguments();
    let (first, rest) = args.split_first()?;
    let (command, about): (Command, _) = match first.as_str() {
        health_check::COMMAND => (health_check::run, config::HEALTH),
        "import" => (transfer::import, help::IMPORT),
        "export" => (transfer::export, help::EXPORT),
        "restore" => (transfer::restore, help::RESTORE),
        _ => return None,
    };
    Some((command, about, rest.to_vec()))
}

/// Ends with 0 or 1 only: container engines give other codes a meaning of their own.
fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("leaseway: {why}");
            ExitCode::FAILURE
        }
    }
}

fn configuration() -> Result<Invocation, config::ConfigError> {
    let args = arguments();
    let env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    config::parse(&args, &env, |path| std::fs::read_to_string(path))
}

fn print(text: &str) -> ExitCode {
    // Whoever closed the pipe has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Why the process ends with an error, in one line.
struct Failure {
    message: String,
    /// The log has it already.
    logged: bool,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Failure { message, logged: false }
    }
}

/// What the process holds from its start to its end.
struct Held {
    dir: DataDir,
    places: Vec<Bound>,
    stop: Stop,
    past: Past,
}

impl Held {
    fn take(config: &Config) -> Result<Held, Failure> {
        let stop = lives::stop_signals().map_err(|error| error.to_string())?;
        tracing::info!(
            version = VERSION,
            etcd_version = config::ETCD_VERSION,
            name = config.name,
            data_dir = %config.data_dir.display(),
            "starting leaseway"
        );
        raise_open_files();
        let dir = DataDir::open(&config.data_dir).map_err(|error| error.to_string())?;
        let places = serve::bind(config).map_err(|error| error.to_string())?;
        Ok(Held { dir, places, stop, past: Past::default() })
    }

    /// A gateway's directory is a cache, which may be deleted while it runs: then it has another one.
    fn renew_dir(&mut self, config: &Config) -> Result<(), Failure> {
        if !self.dir.presence().is_ok_and(|presence| presence.lasts()) {
            self.dir = DataDir::open(&config.data_dir).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Serves until the process is to end; a gateway that was left behind by the log starts over.
fn run(config: &Config) -> Result<(), Failure> {
    let mut held = Held::take(config)?;
    loop {
        let life = Life::begin().map_err(|error| format!("cannot start threads: {error}"))?;
        match life.run(serve(config, &mut held)) {
            Ok(None) => {
                life.leave();
                return Ok(());
            }
            Ok(Some(halt)) => {
                held.past.left_behind(&halt, life.lasted())?;
                life.end()?;
            }
            Err(failure) => {
                life.leave();
                return Err(failure);
            }
        }
        held.renew_dir(config)?;
    }
}

/// Serves until a signal asks for the end, or, with the reason, until starting over may help.
async fn serve(config: &Config, held: &mut Held) -> Result<Option<Halt>, Failure> {
    let metrics = Arc::new(Metrics::new(config.metrics == MetricsDetail::Extensive));
    metrics.server.started_over_total.add(held.past.times);
    let (vital, parts) = Vital::channel();
    let tls = secure(config, &held.dir, &metrics, &vital)?;
    let listeners: Result<Vec<_>, _> = held.places.iter().map(Bound::listener).collect();
    let listeners = listeners.map_err(|error| error.to_string())?;
    let (tell, app) = watch::channel(None);
    let starting = starting(config, &metrics);
    let gate = Gate { metrics: metrics.clone(), starting, app, vital: vital.clone() };
    let mut waiting = Some((listeners, gate));
    let mut start = || {
        waiting.take().map(|(listeners, gate)| Server::start(config, listeners, gate, tls.clone()))
    };
    // Joining a cluster may take as long as the cluster is away, and loading takes its time: until then
    // there is an answer to whoever asks how things are.
    let server = if config.backend == Backend::Local { None } else { start() };
    let opened = tokio::select! {
        opened = open(config, held, metrics, vital.clone()) => opened,
        signal = lives::stopped(&held.stop) => return Ok(stopping(signal)),
        halt = vital::failed(&parts) => Err(halt),
    };
    let (node, app) = match opened {
        Ok(opened) => opened,
        Err(halt) => {
            drop(tell);
            cut_off(server).await;
            return over(halt, false);
        }
    };

    tell.send_replace(Some(Arc::new(app)));
    let server = server.or_else(start);
    tracing::info!("ready to serve client requests");
    if held.past.times == 0 {
        greet(config, &places(&held.places));
        tell_supervisor(State::Ready);
    } else {
        tell_supervisor(State::ReadyAgain);
    }

    // A gateway's directory is a cache: nothing is lost with it.
    let watched = match config.backend {
        Backend::Local => {
            let presence = held.dir.presence().map_err(|error| error.to_string())?;
            Some(vital.spawn("what watches the data directory", watch_presence(presence)))
        }
        Backend::Oxia(_) => None,
    };
    let outcome = tokio::select! {
        // In this order: a store that has failed is also why others fail that read it.
        biased;
        signal = lives::stopped(&held.stop) => Ok(stopping(signal)),
        halt = node.failed() => over(halt, true),
        halt = vital::failed(&parts) => over(halt, true),
    };

    if let Some(watched) = watched {
        watched.abort();
    }
    node.announce_stop();
    if matches!(outcome, Ok(Some(_))) {
        tell_supervisor(State::StartingOver);
        cut_off(server).await;
    } else {
        tell_supervisor(State::Stopping);
        // Clients are to go elsewhere now.
        held.places.clear();
        if let Some(server) = server {
            server.stop().await;
        }
    }
    node.close().await;
    if matches!(outcome, Ok(None)) {
        tracing::info!("stopped");
    }
    outcome
}

/// Opens what is served; after a while, if that has been tried again and again.
async fn open(
    config: &Config,
    held: &Held,
    metrics: Arc<Metrics>,
    vital: Vital,
) -> Result<(Node, App), Halt> {
    tokio::time::sleep(held.past.pause).await;
    Node::open(config, &held.dir, metrics, vital).await
}

/// What the end of what is served means for the process.
fn over(halt: Halt, logged: bool) -> Result<Option<Halt>, Failure> {
    match halt.trimmed_below {
        Some(_) => {
            tracing::warn!(reason = halt.reason, "left behind by the log; starting over");
            Ok(Some(halt))
        }
        None => Err(Failure { message: halt.reason, logged }),
    }
}

async fn cut_off(server: Option<Server>) {
    if let Some(server) = server {
        server.cut_off().await;
    }
}

/// What TLS needs, followed from here on; none without TLS.
fn secure(
    config: &Config,
    dir: &DataDir,
    metrics: &Arc<Metrics>,
    vital: &Vital,
) -> Result<Option<Arc<ServerTls>>, Failure> {
    let Some(tls) = &config.tls else { return Ok(None) };
    tracing::info!(tls_info = %tls, "starting with client TLS");
    let tls = ServerTls::load(tls, dir.path(), metrics.clone());
    let tls = Arc::new(tls.map_err(|error| format!("TLS: {error}"))?);
    // Ends with the runtime.
    vital.spawn("what follows the files for TLS", tls.clone().follow());
    Ok(Some(tls))
}

/// What health checks are told while there is nothing to serve yet: alive, not ready.
struct Starting;

impl HealthState for Starting {
    fn alarms(&self) -> Vec<i32> {
        Vec::new()
    }

    fn read(&self, _serializable: bool) -> ReadFuture<'_> {
        Box::pin(std::future::ready(Err("the keyspace is being loaded".into())))
    }

    fn loading(&self) -> bool {
        true
    }
}

fn starting(config: &Config, metrics: &Arc<Metrics>) -> Endpoints {
    Endpoints::new(Arc::new(Starting), metrics.clone(), config.access.clone())
}

/// How often the data directory is looked for.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(5);

/// Says it, once, when the data directory has been removed or replaced: everything goes on working, and
/// would be lost with the end of the process.
async fn watch_presence(presence: Presence) {
    let presence = Arc::new(presence);
    loop {
        tokio::time::sleep(PRESENCE_INTERVAL).await;
        let looked_at = presence.clone();
        if !tokio::task::spawn_blocking(move || looked_at.lasts()).await.unwrap_or(true) {
            tracing::error!(
                "the data directory has been removed or replaced; what is written is lost when \
                 this process ends"
            );
            return;
        }
    }
}

/// Allows as many open files as the system lets this process have, as Go programs do: each
/// connection is one, and the usual limit of 1024 is below what a busy server needs.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, ?current, ?maximum, "cannot raise the number of open files");
    }
}

fn stopping(signal: &str) -> Option<Halt> {
    tracing::info!(signal, "received signal; shutting down");
    None
}

/// Tells the service manager, if one asked to be told.
fn tell_supervisor(state: State) {
    if let Some(socket) = std::env::var_os(supervisor::SOCKET_VARIABLE)
        && let Err(error) = supervisor::tell(&socket, state)
    {
        tracing::error!(%error, ?state, "cannot tell the service manager");
    }
}

/// Where the API is served.
fn places(places: &[Bound]) -> String {
    let clients = places.iter().filter(|place| place.traffic != Traffic::Metrics);
    let urls = clients.flat_map(Bound::urls).map(|url| url.to_string());
    let urls: Vec<String> = urls.collect();
    urls.join(", ")
}

/// One line for a person, apart from the log. Where only programs see it among the log's lines, it is one of these:
/// they read every line as one.
fn greet(config: &Config, places: &str) {
    let text = format!(
        "Leaseway {VERSION} serves the etcd {} API on {places}; data is in {}",
        config::ETCD_VERSION,
        config.data_dir.display()
    );
    let mut stdout = std::io::stdout();
    if stdout.is_terminal() || !has_log(&stdout, &config.log.outputs) {
        let _ = writeln!(stdout, "{text}");
    } else {
        tracing::info!("{text}");
    }
}

/// Whether the log goes to standard output as well: by its own name, or because other names lead to the same place.
fn has_log(stdout: &Stdout, outputs: &[LogOutput]) -> bool {
    let place = |found: Metadata| (found.dev(), found.ino());
    let stream = |stream: BorrowedFd<'_>| {
        let file = File::from(stream.try_clone_to_owned().ok()?);
        file.metadata().ok().map(place)
    };
    let Some(out) = stream(stdout.as_fd()) else { return outputs.contains(&LogOutput::Stdout) };
    outputs.iter().any(|output| match output {
        LogOutput::Stdout => true,
        LogOutput::Stderr => stream(std::io::stderr().as_fd()) == Some(out),
        LogOutput::File(path) => std::fs::metadata(path).ok().map(place) == Some(out),
    })
}
