package transfersuite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// tool runs a program to its end and returns what it printed on standard output.
func tool(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		err = fmt.Errorf("%s %q: %w\n%s%s", filepath.Base(program), args, err, output, stderr.String())
	}
	return string(output), err
}

func etcdutl(t *testing.T, args ...string) string {
	t.Helper()
	return expect.Must(tool(t, harness.EtcdTool(t, "etcdutl"), args...))(t)
}

func leaseway(t *testing.T, args ...string) string {
	t.Helper()
	return expect.Must(tool(t, harness.Leaseway.Binary(t), args...))(t)
}

// refused runs leaseway, which has to say no with these words.
func refused(t *testing.T, words string, args ...string) {
	t.Helper()
	_, err := tool(t, harness.Leaseway.Binary(t), args...)
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Fatalf("%q: want a refusal with %q, got %v", args, words, err)
	}
}

// save takes a snapshot with etcdctl.
func save(t *testing.T, server *harness.Server, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	args := append([]string{"--endpoints=" + server.Endpoint, "--command-timeout=60s"}, flags...)
	expect.Must(tool(t, harness.EtcdTool(t, "etcdctl"), append(args, "snapshot", "save", path)...))(t)
	return path
}

// status is what etcdutl says of a snapshot.
type status struct {
	Hash, Revision, TotalKey, TotalSize int64
	Version                             string
}

func statusOf(t *testing.T, path string) status {
	t.Helper()
	var s status
	expect.NoError(t, json.Unmarshal([]byte(etcdutl(t, "snapshot", "status", path, "-w", "json")), &s))
	return s
}

// hashOf is HashKV as etcdutl computes it from a file.
func hashOf(t *testing.T, path string) uint32 {
	t.Helper()
	// etcdutl opens the file for writing, and does not want the checksum at its end.
	content := expect.Must(os.ReadFile(path))(t)
	copied := filepath.Join(t.TempDir(), "db")
	expect.NoError(t, os.WriteFile(copied, content[:len(content)/512*512], 0o600))
	var answer struct{ Hash uint32 }
	expect.NoError(t, json.Unmarshal([]byte(etcdutl(t, "hashkv", copied, "-w", "json")), &answer))
	return answer.Hash
}

// restore makes a data directory of a snapshot: etcd's with etcdutl, ours with
// `leaseway import`, which fills a gateway's keyspace likewise.
func restore(t *testing.T, subject harness.Subject, snapshot string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	switch subject {
	case harness.Leaseway:
		leaseway(t, "import", snapshot, "--data-dir", dir)
		return dir
	case harness.Gateway:
		leaseway(t, append([]string{"import", snapshot}, subject.Flags(t, dir)...)...)
		return dir
	}
	const peer = "http://127.0.0.1:2380"
	etcdutl(t, "snapshot", "restore", snapshot, "--data-dir", dir, "--name", "subject",
		"--initial-cluster", "subject="+peer, "--initial-advertise-peer-urls", peer)
	return dir
}
