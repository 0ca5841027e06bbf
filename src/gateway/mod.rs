//! The protocols in front of the keyspace. Translates; decides nothing.
//!
//! [`serve`] owns the sockets, [`dispatch`] sends gRPC calls to their services and speaks gRPC's
//! own errors in grpc-go's words, [`http`] answers the plain HTTP endpoints.

pub mod dispatch;
pub mod health;
pub mod http;
pub mod listen;
pub mod serve;
pub mod transport;
