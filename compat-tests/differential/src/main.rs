//! Compares a server with etcd: both get the same requests, and every field of every answer must be
//! the same. See the README beside this crate.

mod bind;
mod campaign;
mod cli;
mod client;
mod compare;
mod corpus;
mod expect;
mod generate;
mod json;
mod known;
mod login;
mod ops;
mod report;
mod reset;
mod rng;
mod runner;
mod schema;
mod servers;
mod shrink;
mod stream;
mod streams;
mod token;
mod watch;

use std::process::ExitCode;

use cli::Options;
use servers::Programs;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{}", cli::USAGE);
        return ExitCode::SUCCESS;
    }
    let options = Options::parse(args);
    if let Ok(Options { show: Some(index), seed, json, .. }) = options {
        print!("{}", generate::sequence(seed, index, json).to_text());
        return ExitCode::SUCCESS;
    }
    let ready = options.and_then(|o| {
        let programs = Programs::from_environment()?.with_json(o.json);
        Ok((o, programs))
    });
    let (options, programs) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            eprintln!("leaseway-differential: {error}\n\n{}", cli::USAGE);
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("leaseway-differential: no runtime: {error}");
            return ExitCode::from(2);
        }
    };
    match runtime.block_on(campaign::run(options, programs)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("leaseway-differential: {error}");
            ExitCode::from(2)
        }
    }
}
