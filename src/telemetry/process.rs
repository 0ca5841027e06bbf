//! What the operating system says about this process (Linux; elsewhere nothing is reported).

use std::fs;

use super::exposition::Exposition;

/// Clock ticks a second in `/proc`, fixed by the kernel's interface on all platforms that matter.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES_FALLBACK: u64 = 4096;

/// Appends the `process_` metrics.
pub fn write(out: &mut Exposition) {
    let Some(stat) = fs::read_to_string("/proc/self/stat").ok() else { return };
    // The command name may hold spaces and parentheses; the fields after the last one are fixed.
    let Some((_, fields)) = stat.rsplit_once(") ") else { return };
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number =
        |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let (user, system, start_ticks, virtual_bytes) =
        (number(11), number(12), number(19), number(20));
    out.value(
        "process_cpu_seconds_total",
        "Processor time used, in seconds.",
        "counter",
        "",
        (user + system) as f64 / TICKS_PER_SECOND,
    );
    // etcd tells the numbers of file descriptors under two names each.
    if let Some(limit) = limit("Max open files") {
        for name in ["os_fd_limit", "process_max_fds"] {
            out.value(name, "Most file descriptors allowed.", "gauge", "", limit);
        }
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        let open = entries.count();
        for name in ["os_fd_used", "process_open_fds"] {
            out.value(name, "Open file descriptors.", "gauge", "", open);
        }
    }
    write_network(out);
    let resident = resident_bytes().unwrap_or(number(21) * PAGE_BYTES_FALLBACK);
    out.value("process_resident_memory_bytes", "Resident memory in bytes.", "gauge", "", resident);
    if let Some(boot) = boot_time() {
        let started = boot as f64 + start_ticks as f64 / TICKS_PER_SECOND;
        out.value(
            "process_start_time_seconds",
            "When the process started, in seconds since 1970.",
            "gauge",
            "",
            started,
        );
    }
    if let Some(limit) = limit("Max address space") {
        out.value(
            "process_virtual_memory_max_bytes",
            "Most virtual memory allowed, in bytes.",
            "gauge",
            "",
            limit,
        );
    }
    out.value(
        "process_virtual_memory_bytes",
        "Virtual memory in bytes.",
        "gauge",
        "",
        virtual_bytes,
    );
}

/// Appends what the kernel has counted on the network that the process sees.
fn write_network(out: &mut Exposition) {
    let Ok(netstat) = fs::read_to_string("/proc/self/net/netstat") else { return };
    // A line of names, and one of values.
    let mut lines = netstat.lines().filter(|line| line.starts_with("IpExt: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return };
    for (name, value) in names.split(' ').zip(values.split(' ')) {
        let (name, help) = match name {
            "InOctets" => {
                ("process_network_receive_bytes_total", "Bytes received in this network.")
            }
            "OutOctets" => ("process_network_transmit_bytes_total", "Bytes sent in this network."),
            _ => continue,
        };
        if let Ok(bytes) = value.parse::<u64>() {
            out.value(name, help, "counter", "", bytes);
        }
    }
}

/// A limit on this process; `u64::MAX` for none.
fn limit(name: &str) -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with(name))?;
    match line[name.len()..].split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn boot_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}
