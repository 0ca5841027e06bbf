//! What `import`, `export` and `restore` tell of themselves.

/// The flags for a keyspace on Oxia that is filled.
macro_rules! on_oxia {
    () => {
        "\
\x20     --backend oxia://HOST:PORT[,HOST:PORT]/NAMESPACE?keyspace=NAME
                         An empty keyspace on an Oxia cluster in its place; --data-dir is then a folder with
                         room for the data meanwhile.
      --oxia-ca-file FILE, --oxia-cert-file FILE, --oxia-key-file FILE, --oxia-token-file FILE,
      --oxia-authority NAME
                         How the cluster is reached, as for the server.
"
    };
}

/// The flags for a server that is asked.
macro_rules! asked {
    () => {
        concat!(
            "\
\x20     --user NAME:PASSWORD, or --user NAME --password PASSWORD
                         As whom it is asked.
",
            crate::config::asking::tls_help!()
        )
    };
}

/// `leaseway import --help`.
pub const IMPORT: &str = concat!(
    "\
\x20 leaseway import SNAPSHOT|DIRECTORY --data-dir DIR
    Move in from etcd: a saved snapshot, or the data directory of an etcd that is stopped, into an
    empty data directory, with all revisions, leases, users and roles.

\x20 leaseway import --from-endpoint URL [--follow] --data-dir DIR
    The same from a running etcd, as of now.

    What is filled:
      --data-dir DIR     A directory that is empty or missing.
",
    on_oxia!(),
    "\
\n\
\x20   A file, or a directory:
      --skip-hash-check  Read a file without a checksum, such as a copy of member/snap/db.
      --wal-dir DIR      Where the log is of an etcd that was started with --wal-dir.
      --skip-wal-check   Read a database without its log. What was acknowledged and is only in the log is lost.

    A running server:
      --from-endpoint URL
                         Where it is. Without a scheme: https if there is a flag for TLS, else http.
      --follow           Take over all that is written there afterwards as well, until SIGINT, SIGTERM or
                         ENTER says that it is time to cut over.
",
    asked!(),
);

/// `leaseway export --help`.
pub const EXPORT: &str = concat!(
    "\
\x20 leaseway export FILE [--endpoint URL | --data-dir DIR]
    Move out to etcd, or make a backup: a file for etcdutl snapshot restore, or for leaseway restore,
    of a running server or of the data directory of a stopped one.

    A stopped server:
      --data-dir DIR     Its directory.
      --storage-version 3.7.0
                         The etcd that the file is for: 3.6.0 or 3.7.0.

    A running server:
      --endpoint URL     Where it is; http://127.0.0.1:2379 without. Without a scheme: https if there is a flag
                         for TLS, else http.
",
    asked!(),
);

/// `leaseway restore --help`.
pub const RESTORE: &str = concat!(
    "\
\x20 leaseway restore SNAPSHOT [--data-dir DIR]
    Start again from a backup. Unlike import, moves the revision on and compacts everything before,
    so that clients who saw later revisions notice.

      --bump-revision 1000000000
                         How far the revision moves on; 0 leaves it.
      --mark-compacted=true
                         Compact everything before; goes with a bump, and only with one.
      --skip-hash-check  Read a file without a checksum.

    What is filled:
      --data-dir DIR     A directory that is empty or missing; NAME.etcd without.
      --name default     Only for the default of --data-dir.
",
    on_oxia!(),
    "\
\n\
\x20   Accepted without effect, as etcdutl has them: --wal-dir, --initial-cluster, --initial-cluster-token,
    --initial-advertise-peer-urls, --initial-memory-map-size.
",
);
