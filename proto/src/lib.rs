//! The etcd v3 wire contract.
//!
//! `etcdserverpb`, `mvccpb`, `authpb`, `v3lockpb` and `v3electionpb` hold the messages and the
//! clients; [`server`] the services to implement. [`raw`] has the answers that a server builds from
//! rows in their wire encoding, [`schema`] the messages' shapes as data, and [`log`] the command log's own
//! entries. [`oxia`] is another
//! contract, in which this server is the client.
//!
//! Names and field numbers are those of etcd v3.7's published API, and of Oxia's.

#![allow(clippy::all)]
#![allow(missing_docs)]

pub mod raw;
pub mod schema;

pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}
pub mod authpb {
    tonic::include_proto!("authpb");
}
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
pub mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}
pub mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}
/// Entries of the command log (`leaseway/log.proto`).
pub mod log {
    tonic::include_proto!("leaseway.log.v1");
}
/// What an Oxia server is told and answers (`oxia/client.proto`), the part that is used.
pub mod oxia {
    tonic::include_proto!("io.oxia.proto.v1");
}
/// The services, with raw answers where rows are returned.
pub mod server {
    pub mod etcdserverpb {
        include!(concat!(env!("OUT_DIR"), "/servers/etcdserverpb.rs"));
    }
    pub mod v3lockpb {
        include!(concat!(env!("OUT_DIR"), "/servers/v3lockpb.rs"));
    }
    pub mod v3electionpb {
        include!(concat!(env!("OUT_DIR"), "/servers/v3electionpb.rs"));
    }
}
