//go:build tools

// Package tools names the etcd programs that the compatibility suites compare
// Leaseway with. Nothing here is ever linked: the imports only make the module
// system pin every dependency of those programs in go.mod and go.sum.
package tools

import (
	_ "go.etcd.io/etcd/etcdctl/v3/ctlv3"
	_ "go.etcd.io/etcd/etcdutl/v3/etcdutl"
	_ "go.etcd.io/etcd/server/v3/etcdmain"
)
