//! Generates the wire contract in two passes, the command log's entries, and Oxia's contract.
//!
//! 1. Every message, and a client for every service.
//! 2. The servers, whose `Range`, `RangeStream` and `Watch` answers are replaced by types of
//!    `src/raw.rs` that hold rows in their wire encoding, so that a row is encoded once in its life.
//!
//! The shapes of etcd's messages are written down as data too (`build/shapes.rs`).

use std::path::PathBuf;

#[path = "build/shapes.rs"]
mod shapes;

const PACKAGES: [&str; 5] = ["etcdserverpb", "mvccpb", "authpb", "v3lockpb", "v3electionpb"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let etcd = ["etcd/rpc.proto", "etcd/v3lock.proto", "etcd/v3election.proto"];
    let descriptors = protox::compile(etcd, ["etcd"])?;

    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(descriptors.clone())?;

    std::fs::write(out.join("shapes.rs"), shapes::generate(&descriptors))?;

    let servers = out.join("servers");
    std::fs::create_dir_all(&servers)?;
    let mut second = tonic_prost_build::configure()
        .build_client(false)
        .bytes(".")
        .out_dir(&servers)
        .extern_path(".etcdserverpb.RangeResponse", "crate::raw::RangeReply")
        .extern_path(".etcdserverpb.RangeStreamResponse", "crate::raw::RangeStreamReply")
        .extern_path(".etcdserverpb.WatchResponse", "crate::raw::WatchReply");
    for package in PACKAGES {
        second = second.extern_path(format!(".{package}"), format!("crate::{package}"));
    }
    second.compile_fds(descriptors)?;

    let log = protox::compile(["leaseway/log.proto"], ["leaseway", "etcd", "."])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    for package in PACKAGES {
        config.extern_path(format!(".{package}"), format!("crate::{package}"));
    }
    config.compile_fds(log)?;

    // No client: which path a call takes is known only at run time. The server is for tests.
    tonic_prost_build::configure()
        .build_client(false)
        .bytes(".")
        .compile_fds(protox::compile(["oxia/client.proto"], ["oxia"])?)?;

    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=etcd");
    println!("cargo:rerun-if-changed=leaseway");
    println!("cargo:rerun-if-changed=oxia");
    Ok(())
}
