package openssl

import (
	"crypto/elliptic"
	"path/filepath"
	"testing"

	"leaseway/compat-tests/harness"
)

// OpenSSL's own policy is out of the way.
const anyStrength = "DEFAULT:@SECLEVEL=0"

func TestProtocolVersions(t *testing.T) {
	t.Parallel()
	const none = "alert 70"
	const tls12 = "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256 200"
	const tls13 = "TLSv1.3 TLS_AES_128_GCM_SHA256 200"
	for _, server := range []struct {
		name         string
		flags        []string
		tls12, tls13 string
	}{
		{"default", nil, tls12, tls13},
		{"from 1.2", []string{"--tls-min-version=TLS1.2"}, tls12, tls13},
		{"from 1.3", []string{"--tls-min-version=TLS1.3"}, none, tls13},
		{"to 1.2", []string{"--tls-max-version=TLS1.2"}, tls12, none},
		{"to 1.3", []string{"--tls-max-version=TLS1.3"}, tls12, tls13},
		{"only 1.2", []string{"--tls-min-version=TLS1.2", "--tls-max-version=TLS1.2"}, tls12, none},
		{"only 1.3", []string{"--tls-min-version=TLS1.3", "--tls-max-version=TLS1.3"}, none, tls13},
	} {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			authority := harness.NewAuthority(t)
			subject := harness.Start(t, append(server.flags, authority.ServerFlags()...)...)
			// Leaseway's library misses the kinds of signatures in the hello first.
			old := differs(none, "alert 40")
			old.check(t, "TLS 1.0", connect(t, subject, "-tls1", "-cipher", anyStrength))
			old.check(t, "TLS 1.1", connect(t, subject, "-tls1_1", "-cipher", anyStrength))
			same(server.tls12).check(t, "TLS 1.2", connect(t, subject, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"))
			same(server.tls13).check(t, "TLS 1.3", connect(t, subject, "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"))
		})
	}
}

func TestVersionsThatCannotBe(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	for _, bad := range [][]string{
		{"--tls-min-version=TLS1.1"},
		{"--tls-max-version=SSL3"},
		{"--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"},
		{"--tls-min-version=TLS1.3", "--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
		{"--cipher-suites=TLS_NO_SUCH_SUITE"},
	} {
		subject := harness.CurrentSubject(t)
		arguments := append(authority.ServerFlags(), bad...)
		address := "https://" + harness.FreeAddress(t)
		arguments = append(arguments, "--data-dir="+filepath.Join(t.TempDir(), "data"),
			"--listen-client-urls="+address, "--advertise-client-urls="+address)
		process := harness.StartProcess(t, "refused", nil, subject.Binary(t), arguments...)
		code, ended := process.Wait(handshakeDeadline)
		if !ended || code == 0 {
			t.Errorf("%v: ended %v with code %d", bad, ended, code)
		}
	}
}

// TestSuitesOfTLS12: what is negotiated with clients that offer one suite each. Leaseway's library has
// no suites without authenticated encryption; nor does etcd, unless told, accept any without forward
// secrecy.
func TestSuitesOfTLS12(t *testing.T) {
	t.Parallel()
	const none = "alert 40"
	served := func(suite string) outcome { return same("TLSv1.2 " + suite + " 200") }
	withoutAEAD := func(suite string) outcome { return differs("TLSv1.2 "+suite+" 200", none) }
	authority := harness.NewAuthority(t)
	for _, kind := range []struct {
		name   string
		pair   harness.Pair
		suites map[string]outcome
	}{
		{"ECDSA", authority.Issue("server", "127.0.0.1"), map[string]outcome{
			"ECDHE-ECDSA-AES128-GCM-SHA256":  served("ECDHE-ECDSA-AES128-GCM-SHA256"),
			"ECDHE-ECDSA-AES256-GCM-SHA384":  served("ECDHE-ECDSA-AES256-GCM-SHA384"),
			"ECDHE-ECDSA-CHACHA20-POLY1305":  served("ECDHE-ECDSA-CHACHA20-POLY1305"),
			"ECDHE-ECDSA-AES128-SHA":         withoutAEAD("ECDHE-ECDSA-AES128-SHA"),
			"ECDHE-ECDSA-AES256-SHA":         withoutAEAD("ECDHE-ECDSA-AES256-SHA"),
			"ECDHE-ECDSA-AES128-SHA256":      same(none),
			"ECDHE-ECDSA-AES256-SHA384":      same(none),
			"ECDHE-ECDSA-AES128-CCM":         same(none),
			"ECDHE-ECDSA-CAMELLIA128-SHA256": same(none),
			"ECDHE-RSA-AES128-GCM-SHA256":    same(none),
			"AES128-GCM-SHA256":              same(none),
		}},
		{"RSA", authority.IssueFor(rsaKey(t, 2048), unchanged, "server", "127.0.0.1"), map[string]outcome{
			"ECDHE-RSA-AES128-GCM-SHA256":   served("ECDHE-RSA-AES128-GCM-SHA256"),
			"ECDHE-RSA-AES256-GCM-SHA384":   served("ECDHE-RSA-AES256-GCM-SHA384"),
			"ECDHE-RSA-CHACHA20-POLY1305":   served("ECDHE-RSA-CHACHA20-POLY1305"),
			"ECDHE-RSA-AES128-SHA":          withoutAEAD("ECDHE-RSA-AES128-SHA"),
			"ECDHE-RSA-AES256-SHA":          withoutAEAD("ECDHE-RSA-AES256-SHA"),
			"ECDHE-RSA-AES128-SHA256":       same(none),
			"ECDHE-RSA-AES256-SHA384":       same(none),
			"AES128-GCM-SHA256":             same(none),
			"AES256-GCM-SHA384":             same(none),
			"AES128-SHA":                    same(none),
			"AES256-SHA":                    same(none),
			"AES128-SHA256":                 same(none),
			"DHE-RSA-AES128-GCM-SHA256":     same(none),
			"DHE-RSA-CHACHA20-POLY1305":     same(none),
			"ECDHE-ECDSA-AES128-GCM-SHA256": same(none),
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			server := harness.Start(t, flags(kind.pair)...)
			for suite, want := range kind.suites {
				want.check(t, suite, connect(t, server, "-tls1_2", "-cipher", suite+":@SECLEVEL=0"))
			}
			// One of many is enough.
			mixed := connect(t, server, "-tls1_2", "-cipher", "AES128-SHA:ECDHE+AESGCM:@SECLEVEL=0")
			if mixed.find(statusLine) != "200" {
				t.Errorf("of many: %s", mixed)
			}
		})
	}
}

func TestSuitesOfTLS13(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	for suite, want := range map[string]outcome{
		"TLS_AES_128_GCM_SHA256":       same("TLSv1.3 TLS_AES_128_GCM_SHA256 200"),
		"TLS_AES_256_GCM_SHA384":       same("TLSv1.3 TLS_AES_256_GCM_SHA384 200"),
		"TLS_CHACHA20_POLY1305_SHA256": same("TLSv1.3 TLS_CHACHA20_POLY1305_SHA256 200"),
		"TLS_AES_128_CCM_SHA256":       same("alert 40"),
		"TLS_AES_128_CCM_8_SHA256":     same("alert 40"),
	} {
		want.check(t, suite, connect(t, server, "-tls1_3", "-ciphersuites", suite))
	}
}

func TestChosenSuites(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, append(authority.ServerFlags(),
		"--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")...)
	for suite, want := range map[string]outcome{
		"ECDHE-ECDSA-AES256-GCM-SHA384": same("TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384 200"),
		"ECDHE-ECDSA-AES128-GCM-SHA256": same("TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256 200"),
		"ECDHE-ECDSA-CHACHA20-POLY1305": same("alert 40"),
		"ECDHE-ECDSA-AES128-SHA":        same("alert 40"),
	} {
		want.check(t, suite, connect(t, server, "-tls1_2", "-cipher", suite+":@SECLEVEL=0"))
	}
	// The suites of TLS 1.3 can't be chosen.
	same("TLSv1.3 TLS_CHACHA20_POLY1305_SHA256 200").check(t, "TLS 1.3",
		connect(t, server, "-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"))
}

// TestWeakSuitesOnRequest: etcd serves what it is told to, Leaseway leaves out what it does not have.
func TestWeakSuitesOnRequest(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	pair := authority.IssueFor(rsaKey(t, 2048), unchanged, "server", "127.0.0.1")
	server := harness.Start(t, flags(pair, "--cipher-suites=TLS_RSA_WITH_AES_128_GCM_SHA256,"+
		"TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")...)
	for suite, want := range map[string]outcome{
		"AES128-GCM-SHA256":           differs("TLSv1.2 AES128-GCM-SHA256 200", "alert 40"),
		"ECDHE-RSA-AES128-SHA":        differs("TLSv1.2 ECDHE-RSA-AES128-SHA 200", "alert 40"),
		"ECDHE-RSA-AES128-GCM-SHA256": same("TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 200"),
		"ECDHE-RSA-AES256-GCM-SHA384": same("alert 40"),
	} {
		want.check(t, suite, connect(t, server, "-tls1_2", "-cipher", suite+":@SECLEVEL=0"))
	}
}

func TestKeyExchanges(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	// In TLS 1.2 a certificate on P-256 would be of no use to clients that don't have that curve.
	server := harness.Start(t, flags(authority.IssueFor(rsaKey(t, 2048), unchanged, "server", "127.0.0.1"))...)
	const served12 = "TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 200"
	for group, accepted := range map[string]struct{ etcd, ours bool }{
		"X25519": {true, true}, "P-256": {true, true}, "P-384": {true, true},
		"P-521": {true, false}, "X448": {false, false}, "ffdhe2048": {false, false},
		// The share that comes with the hello is of a group that the server doesn't have: it asks for another.
		"X448:P-256": {true, true}, "P-521:P-384": {true, true},
	} {
		want := func(served string) outcome {
			switch {
			case accepted.etcd && accepted.ours:
				return same(served)
			case accepted.etcd:
				return differs(served, "alert 40")
			default:
				return same("alert 40")
			}
		}
		want(served13).check(t, group+" in TLS 1.3",
			connect(t, server, "-tls1_3", "-groups", group, "-ciphersuites", "TLS_AES_128_GCM_SHA256"))
		if group == "ffdhe2048" {
			continue // not a curve
		}
		want(served12).check(t, group+" in TLS 1.2",
			connect(t, server, "-tls1_2", "-groups", group, "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"))
	}
}

// TestServerKeys: kinds of keys, and that the certificate comes with what clients need to check it.
func TestServerKeys(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	for name, pair := range map[string]harness.Pair{
		"RSA 2048": authority.IssueFor(rsaKey(t, 2048), unchanged, "server", "127.0.0.1", "localhost"),
		"RSA 3072": authority.IssueFor(rsaKey(t, 3072), unchanged, "server", "127.0.0.1", "localhost"),
		"P-256":    authority.IssueFor(ecdsaKey(t, elliptic.P256()), unchanged, "server", "127.0.0.1", "localhost"),
		"P-384":    authority.IssueFor(ecdsaKey(t, elliptic.P384()), unchanged, "server", "127.0.0.1", "localhost"),
		"Ed25519":  authority.IssueFor(ed25519Key(t), unchanged, "server", "127.0.0.1", "localhost"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := harness.Start(t, flags(pair)...)
			for _, version := range []string{"-tls1_2", "-tls1_3"} {
				got := connect(t, server, version, "-CAfile", authority.File, "-verify_return_error", "-verify_ip", "127.0.0.1")
				if got.find(statusLine) != "200" || got.find(verified) != "0" {
					t.Errorf("%s: %s, verified %q\n%s", version, got, got.find(verified), got.output)
				}
			}
		})
	}
}

func TestServerIsCheckedByItsNames(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, flags(authority.Issue("common.example", "127.0.0.1", "store.example", "*.wild.example"))...)
	for _, name := range []struct{ option, value, code string }{
		{"-verify_ip", "127.0.0.1", "0"},
		{"-verify_hostname", "store.example", "0"},
		{"-verify_hostname", "a.wild.example", "0"},
		{"-verify_hostname", "common.example", "62"},
		{"-verify_hostname", "b.a.wild.example", "62"},
		{"-verify_ip", "127.0.0.2", "64"},
	} {
		got := connect(t, server, "-CAfile", authority.File, name.option, name.value)
		if got.find(verified) != name.code {
			t.Errorf("%s %s: code %s, want %s", name.option, name.value, got.find(verified), name.code)
		}
	}
	stranger := harness.NewAuthority(t)
	if got := connect(t, server, "-CAfile", stranger.File); got.find(verified) == "0" {
		t.Error("verified by another authority")
	}
}

// TestServerNames: there is one certificate, whatever the client calls the server.
func TestServerNames(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	const served = "TLSv1.3 TLS_AES_128_GCM_SHA256 200"
	for _, name := range []string{"localhost", "elsewhere.example", "127.0.0.1", "under_score.example", "UPPER.example", "xn--zrich-kva.example"} {
		same(served).check(t, name, connect(t, server, "-servername", name, "-ciphersuites", "TLS_AES_128_GCM_SHA256"))
	}
	same(served).check(t, "no name", connect(t, server, "-noservername", "-ciphersuites", "TLS_AES_128_GCM_SHA256"))
}

// protocolOf is the application protocol that was chosen.
type protocolOf string

func (p protocolOf) String() string { return string(p) }

func chosen(s session) protocolOf {
	if name := s.find(alpn); name != "" {
		return protocolOf(name)
	}
	return "none"
}

func TestApplicationProtocols(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		for offered, want := range map[string]outcome{
			"h2": same("h2"), "h2,http/1.1": same("h2"), "http/1.1,h2": same("h2"), "foo,h2": same("h2"),
			// etcd serves them too, without choosing.
			"http/1.1": differs("none", "http/1.1"), "foo,http/1.1": differs("none", "http/1.1"),
		} {
			want.check(t, version+" "+offered, chosen(connect(t, server, version, "-alpn", offered)))
		}
		if got := connect(t, server, version, "-alpn", "http/1.1"); got.find(statusLine) != "200" {
			t.Errorf("%s http/1.1: %s", version, got)
		}
		same("alert 120").check(t, "foo", connect(t, server, version, "-alpn", "foo"))
		same("alert 120").check(t, "http/1.0", connect(t, server, version, "-alpn", "http/1.0,spdy/3"))
		if got := connect(t, server, version); got.find(alpn) != "" || got.find(statusLine) != "200" {
			t.Errorf("%s without ALPN: %q, %s", version, got.find(alpn), got)
		}
	}
}

// TestResumedSessions: nobody is kept from resuming a session where clients show no certificate.
func TestResumedSessions(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		file := filepath.Join(t.TempDir(), "session")
		connect(t, server, version, "-sess_out", file)
		got := connect(t, server, version, "-sess_in", file)
		if got.find(statusLine) != "200" || !resumed(got) {
			t.Errorf("%s: not resumed: %s\n%s", version, got, got.output)
		}
	}
}
