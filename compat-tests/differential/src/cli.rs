//! The command line.

use std::path::PathBuf;

use crate::servers::Kind;

/// How the program is used.
pub const USAGE: &str = "\
usage: leaseway-differential [options]
  --subject leaseway|oxia|etcd  what is compared with etcd (default leaseway)
  --sequences N            number of generated sequences (default 1000)
  --seed S                 what they are generated from (default 1)
  --first N                number of the first generated sequence (default 0)
  --transport grpc|json    how requests are sent (default grpc)
  --only corpus|random     leave out the generated or the kept sequences
  --replay FILE            run one sequence file, and print every answer
  --show N                 print the generated sequence number N of the seed, and do nothing
  --corpus DIR             the kept sequences (default compat-tests/differential/corpus)
  --keep DIR               where to write found sequences (default: the corpus)
  --pairs N                number of server pairs used at the same time (default 6)
  --failures N             stop after so many differences of different kinds (default 20)
";

/// The options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What is compared with etcd.
    pub subject: Kind,
    /// Requests go through the JSON gateways.
    pub json: bool,
    /// Number of generated sequences.
    pub sequences: u64,
    /// What they are generated from.
    pub seed: u64,
    /// Number of the first generated sequence.
    pub first: u64,
    /// Run the kept sequences.
    pub run_corpus: bool,
    /// Run generated sequences.
    pub run_random: bool,
    /// The only file to run.
    pub replay: Option<PathBuf>,
    /// The number of a generated sequence to print.
    pub show: Option<u64>,
    /// Where the kept sequences are.
    pub corpus: PathBuf,
    /// Where found sequences go.
    pub keep: Option<PathBuf>,
    /// Number of server pairs.
    pub pairs: usize,
    /// Number of kinds of differences after which to stop.
    pub failures_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            subject: Kind::Leaseway,
            json: false,
            sequences: 1000,
            seed: 1,
            first: 0,
            run_corpus: true,
            run_random: true,
            replay: None,
            show: None,
            corpus: PathBuf::from("compat-tests/differential/corpus"),
            keep: None,
            pairs: 6,
            failures_max: 20,
        }
    }
}

impl Options {
    /// Reads `--name value` and `--name=value`.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (arg.clone(), args.next().ok_or(format!("{arg} takes a value"))?),
            };
            options.set(&name, &value)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|_| format!("{name} takes a number"));
        match (name, value) {
            ("--subject", "leaseway") => self.subject = Kind::Leaseway,
            ("--subject", "oxia") => self.subject = Kind::Oxia,
            ("--subject", "etcd") => self.subject = Kind::Etcd,
            ("--transport", "grpc") => self.json = false,
            ("--transport", "json") => self.json = true,
            ("--only", "corpus") => self.run_random = false,
            ("--only", "random") => self.run_corpus = false,
            ("--sequences", _) => self.sequences = number()?,
            ("--seed", _) => self.seed = number()?,
            ("--first", _) => self.first = number()?,
            ("--pairs", _) => self.pairs = number()?.clamp(1, 64) as usize,
            ("--failures", _) => self.failures_max = number()?.max(1) as usize,
            ("--show", _) => self.show = Some(number()?),
            ("--replay", _) => self.replay = Some(value.into()),
            ("--corpus", _) => self.corpus = value.into(),
            ("--keep", _) => self.keep = Some(value.into()),
            _ => return Err(format!("unknown option {name} {value}")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn both_forms_are_read_and_mistakes_refused() {
        let options = parse("--subject=etcd --seed 9 --only random --transport json").unwrap();
        assert_eq!((options.subject, options.seed), (Kind::Etcd, 9));
        assert!(options.run_random && !options.run_corpus && options.json);
        for wrong in ["--seed", "--seed x", "--nope 1", "--subject zookeeper", "--transport x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
