package harness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	// ReadyText is in the line that both servers log when they accept clients.
	ReadyText = "ready to serve client requests"

	startDeadline = 60 * time.Second
	stopDeadline  = 10 * time.Second
	// startAttempts covers the moment between finding a free port and binding it.
	startAttempts = 3
)

// Server is one running subject with a data directory of its own.
type Server struct {
	// Endpoint is the client address as host:port.
	Endpoint string
	// DataDir survives Stop, Kill and Restart, and goes with the test.
	DataDir string

	t       testing.TB
	subject Subject
	// keyspace is what a gateway's keyspace is named after.
	keyspace string
	flags    []string
	peerAddr string
	process  *Process
	// processes are all that this server has been.
	processes []*Process
}

// Start runs the subject selected by the environment on free ports and waits
// until it serves. flags are added to its command line.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	return StartSubject(t, CurrentSubject(t), flags...)
}

// StartSubject is Start for a given implementation.
func StartSubject(t testing.TB, subject Subject, flags ...string) *Server {
	t.Helper()
	s := &Server{t: t, subject: subject, flags: flags, DataDir: filepath.Join(t.TempDir(), "data")}
	s.keyspace = s.DataDir
	return s.start()
}

// StartOn is StartSubject with a data directory that is there already.
func StartOn(t testing.TB, subject Subject, dataDir string, flags ...string) *Server {
	t.Helper()
	s := &Server{t: t, subject: subject, flags: flags, DataDir: dataDir}
	s.keyspace = s.DataDir
	return s.start()
}

// Another runs one more gateway of the same keyspace, with the same flags.
func (s *Server) Another() *Server {
	s.t.Helper()
	if s.subject != Gateway {
		s.t.Fatalf("%s has no gateways", s.subject)
	}
	other := &Server{t: s.t, subject: s.subject, flags: s.flags, DataDir: filepath.Join(s.t.TempDir(), "data")}
	other.keyspace = s.keyspace
	return other.start()
}

func (s *Server) start() *Server {
	s.t.Helper()
	t := s.t
	var err error
	for range startAttempts {
		s.Endpoint, s.peerAddr = FreeAddress(t), FreeAddress(t)
		if err = s.launch(); err == nil {
			return s
		}
		if !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	t.Fatal(err)
	return nil
}

func (s *Server) launch() error {
	s.spawn()
	return s.process.AwaitOutput(ReadyText, startDeadline)
}

func (s *Server) spawn() {
	s.process = StartProcess(s.t, string(s.subject), nil, s.subject.Binary(s.t), s.args()...)
	s.processes = append(s.processes, s.process)
}

func (s *Server) args() []string {
	own := s.subject.Flags(s.t, s.keyspace)
	return append(append(own,
		"--name=subject",
		"--data-dir="+s.DataDir,
		"--listen-client-urls="+s.URL(),
		"--advertise-client-urls="+s.URL(),
		"--listen-peer-urls=http://"+s.peerAddr,
		"--initial-advertise-peer-urls=http://"+s.peerAddr,
		"--initial-cluster=subject=http://"+s.peerAddr,
	), s.flags...)
}

// URL is the client address as a URL: with TLS if the flags have a certificate.
func (s *Server) URL() string {
	for _, flag := range s.flags {
		if strings.HasPrefix(flag, "--cert-file=") {
			return "https://" + s.Endpoint
		}
	}
	return "http://" + s.Endpoint
}

// PeerURL is the peer address as a URL.
func (s *Server) PeerURL() string { return "http://" + s.peerAddr }

// Subject tells which implementation this is.
func (s *Server) Subject() Subject { return s.subject }

// Process is the running (or last) server process.
func (s *Server) Process() *Process { return s.process }

// Processes are all that this server has been, the running one last.
func (s *Server) Processes() []*Process { return s.processes }

// Stop ends the server with SIGTERM; it must leave with code 0.
func (s *Server) Stop() {
	s.t.Helper()
	code, err := s.process.Terminate(stopDeadline)
	if err != nil {
		s.t.Fatal(err)
	}
	// etcd hands the signal on to itself at the end, which shows as code -1.
	if code != 0 && !(s.subject == Etcd && code == -1) {
		s.t.Fatalf("%s left with code %d after SIGTERM", s.subject, code)
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() { s.process.Kill() }

// Resume starts the server again on the same addresses and data.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.launch(); err != nil {
		s.t.Fatal(err)
	}
}

// Spawn starts the server again as Resume does, and does not wait until it serves.
func (s *Server) Spawn() {
	s.t.Helper()
	s.spawn()
}

// Restart stops the server with SIGTERM and starts it again.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Resume()
}

// Client opens a client that is closed when the test ends.
func (s *Server) Client() *clientv3.Client {
	s.t.Helper()
	return s.ClientWith(clientv3.Config{})
}

// ClientWith is Client with a configuration; endpoints and logger are filled in.
func (s *Server) ClientWith(config clientv3.Config) *clientv3.Client {
	s.t.Helper()
	config.Endpoints = []string{s.Endpoint}
	config.Logger = zap.NewNop()
	if config.DialTimeout == 0 {
		config.DialTimeout = 10 * time.Second
	}
	client, err := clientv3.New(config)
	if err != nil {
		s.t.Fatalf("client of %s: %v", s.Endpoint, err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// given are the addresses that this process has found.
var given sync.Map

// FreeAddress finds a TCP address on the loopback interface that nobody uses and that this process has
// not found before. Its port is below those that outgoing connections get, so that nothing takes it by
// chance before the server it is for listens there, or while that server is started again.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(17_000))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		listener.Close()
		if _, found := given.LoadOrStore(address, true); !found {
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// Context is bounded by the given time and by the test.
func Context(t testing.TB, within time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

// Eventually calls check until it returns nil; its last error fails the test.
func Eventually(t testing.TB, within time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
