//! Watch fan-out.
