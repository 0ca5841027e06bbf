// Package openssl shakes hands with the server as OpenSSL's s_client does, and as clients do that don't
// speak TLS, or not properly. What etcd answers, to the number of the alert, is what Leaseway has to
// answer; where the libraries for TLS differ, both answers are named.
package openssl

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func TestMain(m *testing.M) {
	if _, err := exec.LookPath("openssl"); err != nil {
		fmt.Fprintln(os.Stderr, "install the program openssl, 3.0 or newer (Debian: openssl)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// request is answered by both servers, over whatever was negotiated.
const request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

const handshakeDeadline = 30 * time.Second

// session is what s_client has told about a connection.
type session struct{ output string }

var (
	alertNumber = regexp.MustCompile(`SSL alert number (\d+)`)
	negotiated  = regexp.MustCompile(`(?m)^(?:New|Reused), (TLSv[\d.]+), Cipher is (\S+)`)
	protocol    = regexp.MustCompile(`(?m)^    Protocol  : (TLSv[\d.]+)`)
	statusLine  = regexp.MustCompile(`HTTP/1\.[01] (\d+)`)
	alpn        = regexp.MustCompile(`(?m)^ALPN protocol: (\S+)`)
	verified    = regexp.MustCompile(`(?m)^ *Verify return code: (\d+)`)
)

// connect runs `openssl s_client` with further arguments, and sends a request once hands are shaken.
func connect(t *testing.T, server *harness.Server, arguments ...string) session {
	t.Helper()
	return run(t, request, append([]string{"s_client", "-connect", server.Endpoint, "-ign_eof"}, arguments...)...)
}

func run(t *testing.T, input string, arguments ...string) session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), handshakeDeadline)
	defer cancel()
	command := exec.CommandContext(ctx, "openssl", arguments...)
	command.Stdin = strings.NewReader(input)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	_ = command.Run() // an alert is a failure, and what is asked about
	if ctx.Err() != nil {
		t.Fatalf("openssl %s: still runs after %v:\n%s", strings.Join(arguments, " "), handshakeDeadline, &output)
	}
	return session{output.String()}
}

func (s session) find(pattern *regexp.Regexp) string {
	if found := pattern.FindStringSubmatch(s.output); found != nil {
		return found[1]
	}
	return ""
}

// String is the outcome in a few words: the alert, or what was negotiated and the status of the answer.
func (s session) String() string {
	if number := s.find(alertNumber); number != "" {
		return "alert " + number
	}
	found := negotiated.FindStringSubmatch(s.output)
	if found == nil {
		return "closed in the handshake"
	}
	version := found[1]
	// Of TLS 1.2 the first line names the version in which the suite appeared.
	if said := s.find(protocol); said != "" {
		version = said
	}
	status := s.find(statusLine)
	if status == "" {
		return "closed after the handshake"
	}
	return fmt.Sprintf("%s %s %s", version, found[2], status)
}

// outcome is what a server answers.
type outcome struct {
	etcd string
	// ours is what Leaseway answers where its library can't do the same; empty if it is the same.
	ours string
}

func same(answer string) outcome            { return outcome{etcd: answer} }
func differs(etcd, leaseway string) outcome { return outcome{etcd, leaseway} }

func (o outcome) check(t *testing.T, what string, got fmt.Stringer) {
	t.Helper()
	want := o.etcd
	if harness.CurrentSubject(t).IsOurs() && o.ours != "" {
		want = o.ours
	}
	if got.String() != want {
		t.Errorf("%s: %s, want %s", what, got, want)
		if s, ok := got.(session); ok {
			t.Logf("%s", s.output)
		}
	}
}

func unchanged(*x509.Certificate) {}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	return expect.Must(rsa.GenerateKey(rand.Reader, bits))(t)
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	return expect.Must(ecdsa.GenerateKey(curve, rand.Reader))(t)
}

func ed25519Key(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// flags are those of a server with a certificate.
func flags(pair harness.Pair, more ...string) []string {
	return append([]string{"--cert-file=" + pair.CertFile, "--key-file=" + pair.KeyFile}, more...)
}

// show are s_client's arguments for a certificate.
func show(pair harness.Pair) []string {
	return []string{"-cert", pair.CertFile, "-key", pair.KeyFile}
}
