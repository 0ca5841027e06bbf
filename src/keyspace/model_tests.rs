//! Random commands against a naive model.
