//! A gateway that reaches a real Oxia server over TLS, when there is one on this machine.

mod support;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leaseway::backend::oxia::client::{Client, Config, Kind, Tls};
use support::client::Client as EtcdClient;
use support::oxia::real_oxia;
use support::tls::{Authority, Folder, Subject};
use support::{PATIENCE, Server, free_port};

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(binary: &Path, arguments: &[String], dir: &Path, log: &str) -> Process {
        let log = File::create(dir.join(log)).expect("a log");
        let child = Command::new(binary)
            .args(arguments)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a handle"))
            .stderr(log)
            .spawn()
            .expect("the program starts");
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One server that wants certificates of its clients, and a coordinator.
struct Cluster {
    folder: Folder,
    port: u16,
    processes: Vec<Process>,
}

impl Cluster {
    fn start(binary: &Path) -> Cluster {
        let (folder, ours) = (Folder::new(), Authority::new("ours"));
        folder.write("ca.pem", ours.pem());
        folder.issue(
            &ours,
            "server",
            &Subject { hosts: &["oxia.example"], ..Subject::named("oxia") },
        );
        folder.issue(&ours, "gateway", &Subject::named("gateway"));
        let ports: Vec<u16> = (0..5).map(|_| free_port()).collect();
        let at = |index: usize| format!("127.0.0.1:{}", ports[index]);
        let file = |name: &str| folder.path(name).display().to_string();
        let dir = folder.path("");
        let server = [
            ["server", "-p", &at(0)].map(String::from),
            ["-i", &at(1), "-m"].map(String::from),
            [&at(2), "--data-dir=db", "--wal-dir=wal"].map(String::from),
            [
                format!("--tls-cert-file={}", file("server.pem")),
                format!("--tls-key-file={}", file("server.key")),
                format!("--tls-trusted-ca-file={}", file("ca.pem")),
            ],
        ]
        .concat();
        let mut server = server;
        server.push("--tls-client-auth".into());
        folder.write(
            "cluster.yaml",
            format!(
                "namespaces: [{{name: default, initialShardCount: 1, replicationFactor: 1}}]\n\
                 servers: [{{public: \"{}\", internal: \"{}\"}}]\n",
                at(0),
                at(1)
            ),
        );
        let coordinator = [
            ["coordinator", "-i", &at(3), "-m", &at(4), "--metadata", "file"]
                .map(String::from)
                .to_vec(),
            ["--file-clusters-status-path", "status.json", "-f", "cluster.yaml"]
                .map(String::from)
                .to_vec(),
        ]
        .concat();
        let mut cluster = Cluster { folder, port: ports[0], processes: Vec::new() };
        cluster.processes.push(Process::start(binary, &server, &dir, "server.log"));
        // A coordinator that finds nobody tries again only after a while.
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", ports[1])).is_err() {
            assert!(Instant::now() < deadline, "{}", cluster.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        cluster.processes.push(Process::start(binary, &coordinator, &dir, "coordinator.log"));
        cluster
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path("server.log")).unwrap_or_default()
    }

    fn config(&self, own: Option<&str>, ca: &str, authority: &str) -> Config {
        let seed = format!("127.0.0.1:{}", self.port).parse().expect("an address");
        let mut config = Config::new(vec![seed], "default", "k", "k/proof/test");
        let tls = Tls::new(self.folder.client(ca, own), Some(authority));
        config.transport = Box::new(tls.expect("files"));
        config
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_reach_oxia_over_tls() {
    let Some(binary) = real_oxia() else {
        eprintln!("skipped: no Oxia server; run compat-tests/tools/build-oxia.sh");
        return;
    };
    let cluster = Cluster::start(&binary);
    let connected =
        Client::connect(cluster.config(Some("gateway"), "ca.pem", "oxia.example"), PATIENCE);
    if let Err(error) = connected.await {
        panic!("{error}\n{}", cluster.log());
    }

    // Each of these is missing something.
    cluster.folder.write("other.pem", Authority::new("theirs").pem());
    for (own, ca, authority, why) in [
        (Some("gateway"), "other.pem", "oxia.example", "UnknownIssuer"),
        (Some("gateway"), "ca.pem", "elsewhere.example", "not valid for name"),
        (None, "ca.pem", "oxia.example", ""),
    ] {
        let config = cluster.config(own, ca, authority);
        let error = Client::connect(config, Duration::from_secs(2)).await.map(drop);
        let error = error.expect_err("refused");
        assert!(error.to_string().contains(why), "{error}");
        assert_ne!(error.kind, Kind::Invalid, "{error}");
    }

    let backend = format!("--backend=oxia+tls://127.0.0.1:{}/default?keyspace=k", cluster.port);
    let flags = [
        backend,
        cluster.folder.flag("oxia-ca-file", "ca.pem"),
        cluster.folder.flag("oxia-cert-file", "gateway.pem"),
        cluster.folder.flag("oxia-key-file", "gateway.key"),
        "--oxia-authority=oxia.example".into(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = tokio::task::block_in_place(|| Server::start(&flags));
    let client = EtcdClient::connect(server.port).await;
    client.put("a", "1", 0).await.expect("written");
    let found = client.everything(0).await.expect("read");
    assert_eq!(found.kvs.len(), 1);
}
