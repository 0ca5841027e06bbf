use super::*;
use crate::load::Measured;
use crate::rows::ROWS;
use crate::workload::Extra;

fn outcome(operations: u64, p99: f64) -> Outcome {
    Outcome {
        measured: Measured {
            operations,
            seconds: 10.0,
            latency_us: Some(Latency { p50: p99 / 2.0, p99, p999: p99 * 2.0, max: p99 * 3.0 }),
            server_cpu_seconds: 5.0,
            generator_cpu_seconds: 1.0,
            peak_resident_bytes: Some(64 << 20),
        },
        extras: vec![Extra { name: "puts", value: 12.5, unit: Unit::PerSecond }],
    }
}

fn report(series: Vec<Series>) -> Report {
    let environment = Environment {
        cpus: 2,
        cpu_model: "CPU".into(),
        kernel: "6.1".into(),
        fsync_us: 400.0,
        versions: [("etcd", "etcd Version: 3.7.3".to_owned())].into(),
    };
    Report { environment, seconds: 10.0, rounds: 3, quick: false, series }
}

fn series(server: Product, rounds: Vec<Outcome>) -> Series {
    Series { rounds, ..Series::new(&ROWS[1], server) }
}

#[test]
fn figures_are_medians_and_ratios_compare_them() {
    let etcd = [100_000, 90_000, 500_000].map(|operations| outcome(operations, 20_000.0));
    let leaseway = [250_000, 200_000, 210_000].map(|operations| outcome(operations, 5_000.0));
    let text = report(vec![
        series(Product::Etcd, etcd.to_vec()),
        series(Product::Leaseway, leaseway.to_vec()),
    ])
    .markdown();
    let expected = "| put 256 B, 100 clients | etcd | 10,000 puts | 10.00 ms | 20.00 ms | \
                    40.00 ms | 5.00 s | 50 µs | 64.0 MiB | 10 µs |";
    assert!(text.contains(expected), "{text}");
    assert!(
        text.contains("| put 256 B, 100 clients | 2.10 | 0.25 | 0.25 | 0.48 | 1.00 |"),
        "{text}"
    );
    assert!(text.contains("| row | measure | etcd | leaseway |"), "{text}");
    assert!(text.contains("| put 256 B, 100 clients | puts | 12.5/s | 12.5/s |"), "{text}");
}

#[test]
fn a_failure_is_named_and_has_no_figures() {
    let mut failed = series(Product::Leaseway, vec![]);
    failed.failure = Some("grpc status 12:\n unknown method".into());
    let text = report(vec![series(Product::Etcd, vec![outcome(10, 5.0)]), failed]).markdown();
    assert!(text.contains("100 clients on leaseway failed: grpc status 12: unknown method"));
    assert!(!text.contains("divided by"), "{text}");
    assert!(text.contains("| puts | 12.5/s | – |"), "{text}");
}

#[test]
fn json_keeps_every_round() {
    let report = report(vec![series(Product::Etcd, vec![outcome(1, 1.0), outcome(2, 1.0)])]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["series"][0]["server"], "etcd");
    assert_eq!(json["series"][0]["rounds"][1]["operations"], 2);
    assert_eq!(json["series"][0]["rounds"][1]["extras"][0]["unit"], "per_second");
}

#[test]
fn numbers_are_readable() {
    assert_eq!(show_number(1_234_567.4), "1,234,567");
    assert_eq!(show_number(999.6), "1,000");
    assert_eq!(show_number(-12_345.0), "-12,345");
    assert_eq!(show_number(5.25), "5.25");
    assert_eq!(show_number(0.0), "0");
    assert_eq!(show_number(42.42), "42.4");
    assert_eq!(show_micros(850.4), "850 µs");
    assert_eq!(show_micros(1_234.0), "1.23 ms");
    assert_eq!(show_micros(234_000.0), "234 ms");
    assert_eq!(show_micros(12_340_000.0), "12.3 s");
    assert_eq!(show_bytes(350.0), "350 B");
    assert_eq!(show_bytes(20_480.0), "20 KiB");
    assert_eq!(show_bytes(-350.0), "-350 B");
    assert_eq!(show_bytes(1_610_612_736.0), "1536.0 MiB");
    assert_eq!(show_ratio(Some(1.0), Some(0.0)), ABSENT);
}

#[test]
fn only_the_part_between_the_markers_changes() {
    const BEGIN: &str = "<!-- compare:begin -->";
    const END: &str = "<!-- compare:end -->";
    let splice = |document: &str, tables: &str| super::splice(document, "compare", tables);
    let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
    let spliced = splice(&document, "new\n").unwrap();
    assert_eq!(spliced, format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
    assert_eq!(splice(&spliced, "new\n").unwrap(), spliced);
    assert_eq!(splice("", "x").unwrap(), format!("{BEGIN}\nx\n{END}\n"));
    assert_eq!(splice("# Title\n", "x").unwrap(), format!("# Title\n\n{BEGIN}\nx\n{END}\n"));
    assert_eq!(splice(&format!("{END}{BEGIN}"), "x"), None);
    assert_eq!(splice(BEGIN, "x"), None);
}
