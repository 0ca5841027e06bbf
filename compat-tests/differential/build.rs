//! Compiles the wire contract to a descriptor set, which the tester reads at run time: requests and
//! answers are handled by reflection, so that no field can be forgotten in the comparison.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let etcd = "../../proto/etcd";
    let descriptors = protox::compile(["rpc.proto", "health.proto"], [etcd, "proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("descriptors.bin");
    std::fs::write(out, descriptors.encode_to_vec())?;
    println!("cargo:rerun-if-changed={etcd}");
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
