package openssl

import (
	"crypto/elliptic"
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leaseway/compat-tests/harness"
)

func resumed(s session) bool { return strings.Contains(s.output, "Reused, TLS") }

const (
	served12 = "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256 200"
	served13 = "TLSv1.3 TLS_AES_128_GCM_SHA256 200"
)

// none12 is what clients of TLS 1.2 without a certificate get: Leaseway's library uses the alert that
// was added for it in TLS 1.3.
var none12 = differs("alert 40", "alert 116")

// eachVersion connects in TLS 1.2 and 1.3, with the certificate if there is one.
func eachVersion(t *testing.T, server *harness.Server, what string, tls12, tls13 outcome, arguments ...string) {
	t.Helper()
	tls12.check(t, what+" in TLS 1.2",
		connect(t, server, append(arguments, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256:@SECLEVEL=0")...))
	tls13.check(t, what+" in TLS 1.3",
		connect(t, server, append(arguments, "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256")...))
}

func demanding(t *testing.T, more ...string) (*harness.Server, *harness.Authority) {
	t.Helper()
	authority := harness.NewAuthority(t)
	return harness.Start(t, append(authority.ServerFlags(),
		append(more, "--client-cert-auth", "--trusted-ca-file="+authority.File)...)...), authority
}

func TestClientsNeedCertificates(t *testing.T) {
	t.Parallel()
	server, authority := demanding(t)
	day := 24 * time.Hour
	change := func(change func(*x509.Certificate)) []string {
		return show(authority.IssueFor(ecdsaKey(t, elliptic.P256()), change, ""))
	}
	served := func(name string, pair harness.Pair) {
		eachVersion(t, server, name, same(served12), same(served13), show(pair)...)
	}
	served("P-256", authority.Issue(""))
	served("P-384", authority.IssueFor(ecdsaKey(t, elliptic.P384()), unchanged, ""))
	served("RSA", authority.IssueFor(rsaKey(t, 2048), unchanged, ""))
	served("Ed25519", authority.IssueFor(ed25519Key(t), unchanged, ""))
	eachVersion(t, server, "none", none12, same("alert 116"))
	eachVersion(t, server, "of another authority", same("alert 48"), same("alert 48"),
		show(harness.NamedAuthority(t, "another").Issue(""))...)
	// Leaseway's library tells that the signature is not by the authority of that name.
	eachVersion(t, server, "of another authority with the same name", differs("alert 48", "alert 51"),
		differs("alert 48", "alert 51"), show(harness.NewAuthority(t).Issue(""))...)
	eachVersion(t, server, "expired", same("alert 45"), same("alert 45"), change(func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*day), time.Now().Add(-day)
	})...)
	eachVersion(t, server, "not yet valid", same("alert 45"), same("alert 45"), change(func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(day), time.Now().Add(2*day)
	})...)
	// It has an alert of its own for a wrong purpose as well,
	eachVersion(t, server, "for servers only", differs("alert 42", "alert 43"), differs("alert 42", "alert 43"), change(func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})...)
	eachVersion(t, server, "for anything", same(served12), same(served13), change(func(c *x509.Certificate) {
		c.ExtKeyUsage = nil
	})...)
	// and neither this curve nor short keys.
	eachVersion(t, server, "on P-521", differs(served12, "alert 51"), differs(served13, "alert 116"),
		show(authority.IssueFor(ecdsaKey(t, elliptic.P521()), unchanged, ""))...)
	eachVersion(t, server, "RSA of 1024 bits", differs(served12, "alert 51"), differs(served13, "alert 51"),
		append([]string{"-cipher", anyStrength}, show(authority.IssueFor(rsaKey(t, 1024), unchanged, ""))...)...)
}

func TestAnAuthorityAloneDemandsCertificates(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, append(authority.ServerFlags(), "--trusted-ca-file="+authority.File)...)
	eachVersion(t, server, "none", none12, same("alert 116"))
	eachVersion(t, server, "one", same(served12), same(served13), show(authority.Issue("ann"))...)
}

func TestCertificatesAreNotAskedForWithoutAnAuthority(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	eachVersion(t, server, "one", same(served12), same(served13), show(harness.NewAuthority(t).Issue("ann"))...)
}

func TestTheAuthoritiesAreNamed(t *testing.T) {
	t.Parallel()
	server, authority := demanding(t)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		got := connect(t, server, append(show(authority.Issue("")), version)...)
		if !strings.Contains(got.output, "Acceptable client certificate CA names") ||
			!strings.Contains(got.output, "CN = authority") {
			t.Errorf("%s: clients aren't told whose certificates are taken:\n%s", version, got.output)
		}
	}
}

func TestRevokedCertificates(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	revoked, good := authority.Issue(""), authority.Issue("")
	list := authority.Revoke(revoked)
	server := harness.Start(t, append(authority.ServerFlags(), "--client-cert-auth", "--trusted-ca-file="+authority.File,
		"--client-crl-file="+list)...)
	eachVersion(t, server, "good", same(served12), same(served13), show(good)...)
	// etcd looks when hands are shaken already, and leaves without a word.
	eachVersion(t, server, "revoked", differs("closed after the handshake", "alert 44"),
		differs("closed after the handshake", "alert 44"), show(revoked)...)
}

func TestAllowedHostnames(t *testing.T) {
	t.Parallel()
	server, authority := demanding(t, "--client-cert-allowed-hostname=good.example,10.1.2.3")
	for _, name := range []string{"good.example", "10.1.2.3"} {
		eachVersion(t, server, name, same(served12), same(served13), show(authority.Issue("", name))...)
	}
	refused := same("alert 42")
	for _, name := range []string{"bad.example", "10.1.2.4"} {
		eachVersion(t, server, name, refused, refused, show(authority.Issue("", name))...)
	}
	// The common name isn't one of them.
	eachVersion(t, server, "none", refused, refused, show(authority.Issue("good.example"))...)
	// In Leaseway a star is never right below a top-level domain.
	eachVersion(t, server, "*.example", differs(served12, "alert 42"), differs(served13, "alert 42"),
		show(authority.Issue("", "*.example"))...)
}

// TestDemandedCertificatesAreCheckedEachTime: what etcd resumes would not be checked again against a
// list of revoked certificates. Leaseway has no sessions there.
func TestDemandedCertificatesAreCheckedEachTime(t *testing.T) {
	t.Parallel()
	server, authority := demanding(t)
	pair := authority.Issue("")
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		file := filepath.Join(t.TempDir(), "session")
		connect(t, server, append(show(pair), version, "-sess_out", file)...)
		got := connect(t, server, append(show(pair), version, "-sess_in", file)...)
		if harness.CurrentSubject(t).IsOurs() && resumed(got) {
			t.Errorf("%s: resumed", version)
		}
		if !harness.CurrentSubject(t).IsOurs() && got.find(statusLine) != "200" {
			t.Errorf("%s: %s", version, got)
		}
	}
}
