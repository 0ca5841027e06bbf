package etcdctlsuite

import (
	"testing"

	"leaseway/compat-tests/harness"
)

func TestTLS(t *testing.T) {
	authority := harness.NewAuthority(t)
	flags := append(authority.ServerFlags(), "--trusted-ca-file="+authority.File, "--client-cert-auth", cheap)
	p := newPair(t, flags...)
	root, ann := authority.Issue("root"), authority.Issue("ann")
	with := func(pair harness.Pair, command string) string {
		return "--cacert " + authority.File + " --cert " + pair.CertFile + " --key " + pair.KeyFile + " " + command
	}
	p.ok(with(ann, "put a 1"))
	p.ok(with(ann, "get a"))
	p.ok(with(ann, "endpoint health"))
	p.ok(with(ann, "member list -w fields"))
	p.ok("--insecure-skip-tls-verify --cert " + ann.CertFile + " --key " + ann.KeyFile + " get a")
	p.ok(with(root, "user add root --no-password"))
	p.ok(with(root, "user grant-role root root"))
	p.ok(with(root, "user add ann --no-password"))
	p.ok(with(root, "role add reader"))
	p.ok(with(root, "role grant-permission reader read a"))
	p.ok(with(root, "user grant-role ann reader"))
	p.ok(with(root, "auth enable"))
	p.ok(with(ann, "get a"))
	p.fails(with(ann, "put a 2"))
	p.ok(with(root, "put a 2"))
	p.ok(with(root, "user list"))
	p.fails(with(ann, "user list"))
	p.ok(with(ann, "user get ann"))
	p.ok(with(root, "auth disable"))
}
