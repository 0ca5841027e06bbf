package openssl

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// answer is what a connection gets for some bytes, until the server closes it.
type answer struct {
	bytes []byte
	end   error
}

// String tells of a TLS record what is in it. Whether the end is a reset depends on what of the client's
// bytes was not read, or not yet.
func (a answer) String() string {
	how := "end"
	if errors.Is(a.end, os.ErrDeadlineExceeded) {
		how = "open"
	}
	switch {
	case len(a.bytes) == 7 && a.bytes[0] == 21:
		return fmt.Sprintf("alert %d, %s", a.bytes[6], how)
	case len(a.bytes) == 0:
		return how
	default:
		return fmt.Sprintf("%q, %s", a.bytes, how)
	}
}

// send sends bytes and reads for as long as there is an answer.
func send(t *testing.T, endpoint, text string, within time.Duration) answer {
	t.Helper()
	conn := expect.Must(net.Dial("tcp", endpoint))(t)
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return answer{end: err}
	}
	got, err := io.ReadAll(conn)
	return answer{got, err}
}

// hello is the beginning of a TLS connection, as a client says it.
func hello(t *testing.T) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() { _ = tls.Client(theirs, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	defer theirs.Close()
	_ = ours.SetDeadline(time.Now().Add(10 * time.Second))
	buffer := make([]byte, 4096)
	length := expect.Must(ours.Read(buffer))(t)
	return buffer[:length]
}

func TestPlainTextWhereTLSIsSpoken(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	garbage := string(bytes.Repeat([]byte{0xfe, 0, 0x7f, 0x80}, 500))
	good := string(hello(t))
	for _, said := range []struct {
		name, text string
		want       outcome
	}{
		{"HTTP/1.1", request, same("end")},
		{"a POST", "POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", same("end")},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", same("end")},
		{"a line", "hello\r\n", same("end")},
		{"garbage", garbage, same("end")},
		{"SSL 2", "\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + strings.Repeat("\x00", 40), differs("alert 70, end", "end")},
		{"a record of another kind", "\x17\x03\x03\x00\x10" + strings.Repeat("x", 16), same("end")},
		{"an alert", "\x15\x03\x01\x00\x02\x02\x28", same("end")},
		{"a record that is too long", "\x16\x03\x01\xff\xff" + strings.Repeat("x", 2000), differs("alert 22, end", "alert 50, end")},
		{"another message", "\x16\x03\x01\x00\x04\x0e\x00\x00\x00", same("alert 10, end")},
		{"half a message and more", good[:40] + strings.Repeat("\x00", len(good)-40), same("alert 50, end")},
	} {
		said.want.check(t, said.name, send(t, server.Endpoint, said.text, handshakeDeadline))
	}
	same("TLSv1.3 TLS_AES_128_GCM_SHA256 200").check(t, "and then", connect(t, server, "-ciphersuites", "TLS_AES_128_GCM_SHA256"))
}

func TestTLSWherePlainTextIsSpoken(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	got := connect(t, server)
	same("closed in the handshake").check(t, "s_client", got)
	if !strings.Contains(got.output, "wrong version number") && !strings.Contains(got.output, "unexpected eof") {
		t.Errorf("s_client: %s", got.output)
	}
}

// TestOthersAreServedBesideTheSilent: whoever says nothing, or half of a hello, waits alone.
func TestOthersAreServedBesideTheSilent(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	half := hello(t)[:100]
	for number := range 200 {
		conn := expect.Must(net.Dial("tcp", server.Endpoint))(t)
		defer conn.Close()
		if number%2 == 0 {
			expect.Must(conn.Write(half))(t)
		}
	}
	began := time.Now()
	for range 3 {
		same(served13).check(t, "beside them", connect(t, server, "-ciphersuites", "TLS_AES_128_GCM_SHA256"))
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("others took %v", took)
	}
}

// TestTheSilentAreClosed: ten seconds are enough for everybody.
func TestTheSilentAreClosed(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	for name, text := range map[string]string{"nothing": "", "half of a hello": string(hello(t)[:100])} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			same("end").check(t, name, send(t, server.Endpoint, text, handshakeDeadline))
			if took := time.Since(began); took < 8*time.Second || took > 15*time.Second {
				t.Errorf("closed after %v", took)
			}
		})
	}
}

// TestTerminationWithConnectionsOverTLS: idle ones, silent ones and one in the middle of its hello keep
// no server from ending.
func TestTerminationWithConnectionsOverTLS(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := harness.Start(t, authority.ServerFlags()...)
	for _, protocols := range [][]string{nil, {"http/1.1"}, {"h2"}} {
		config := authority.Client()
		config.NextProtos = protocols
		conn := expect.Must(tls.Dial("tcp", server.Endpoint, config))(t)
		defer conn.Close()
	}
	for _, text := range [][]byte{nil, hello(t)[:100]} {
		conn := expect.Must(net.Dial("tcp", server.Endpoint))(t)
		defer conn.Close()
		expect.Must(conn.Write(text))(t)
	}
	browser := http.Client{Transport: &http.Transport{TLSClientConfig: authority.Client()}}
	response := expect.Must(browser.Get(server.URL() + "/health"))(t)
	expect.Must(io.Copy(io.Discard, response.Body))(t)
	response.Body.Close()
	server.Stop()
}
