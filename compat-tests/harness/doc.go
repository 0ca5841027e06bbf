// Package harness runs the server that the compatibility suites test.
//
// Which server that is comes from the environment, so that one suite proves
// itself against the real etcd and is then run unchanged against Leaseway:
//
//	SUBJECT        etcd (default) or leaseway
//	ETCD_BIN_DIR   directory of etcd, etcdctl and etcdutl
//	               (default: where tools/build-etcd.sh puts them)
//	LEASEWAY_BIN   the leaseway binary (default: target/release/leaseway)
//
// The package speaks only what both share: etcd's command-line flags, the line
// in the log that announces readiness, signals, and the wire protocol. It knows
// nothing of what the suites check.
package harness
