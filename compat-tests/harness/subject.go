package harness

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// EtcdVersion is the release that the suites compare with.
const EtcdVersion = "3.7.3"

// Subject names a server implementation.
type Subject string

const (
	Etcd     Subject = "etcd"
	Leaseway Subject = "leaseway"
	// Gateway is Leaseway on the Oxia cluster that OXIA_ADDRESSES names. Every
	// server has a keyspace of its own, which goes with its data directory.
	Gateway Subject = "oxia"
)

// CurrentSubject is the implementation selected by SUBJECT.
func CurrentSubject(t testing.TB) Subject {
	t.Helper()
	switch name := os.Getenv("SUBJECT"); name {
	case "", string(Etcd):
		return Etcd
	case string(Leaseway):
		return Leaseway
	case string(Gateway):
		return Gateway
	default:
		t.Fatalf("SUBJECT=%q: want %q, %q or %q", name, Etcd, Leaseway, Gateway)
		return ""
	}
}

// Binary is the absolute path of the subject's server program.
func (s Subject) Binary(t testing.TB) string {
	t.Helper()
	if s == Etcd {
		return EtcdTool(t, "etcd")
	}
	path := os.Getenv("LEASEWAY_BIN")
	if path == "" {
		root, err := repositoryRoot()
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(root, "target", "release", "leaseway")
	}
	return requireExecutable(t, path, "build it with `cargo build --release` or set LEASEWAY_BIN")
}

// IsOurs is true for Leaseway, whatever its backend.
func (s Subject) IsOurs() bool { return s != Etcd }

// Flags are those that the subject needs besides directory and addresses.
func (s Subject) Flags(t testing.TB, keyspaceOf string) []string {
	t.Helper()
	if s != Gateway {
		return nil
	}
	addresses := os.Getenv("OXIA_ADDRESSES")
	if addresses == "" {
		t.Fatal("OXIA_ADDRESSES is not set: start a cluster with compat-tests/tools/oxia-cluster")
	}
	keyspace := fmt.Sprintf("%x", sha256.Sum256([]byte(keyspaceOf)))[:32]
	return []string{"--backend=oxia://" + addresses + "/default?keyspace=" + keyspace}
}

// EtcdTool is the absolute path of etcd, etcdctl or etcdutl.
func EtcdTool(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("ETCD_BIN_DIR")
	if dir == "" {
		dir = filepath.Join(toolsCache(t), "etcd-v"+EtcdVersion)
	}
	return requireExecutable(t, filepath.Join(dir, name), "run compat-tests/tools/build-etcd.sh or set ETCD_BIN_DIR")
}

// KubernetesTool is the absolute path of kube-apiserver or kubectl.
func KubernetesTool(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("KUBERNETES_BIN_DIR")
	if dir == "" {
		dir = filepath.Join(toolsCache(t), "kubernetes-v1.37.2")
	}
	return requireExecutable(t, filepath.Join(dir, name), "run compat-tests/tools/build-kubernetes.sh or set KUBERNETES_BIN_DIR")
}

// Chromium is a browser's program: the one that CHROMIUM_BIN names, one of this machine's, or what the tools
// have put into their cache.
func Chromium(t testing.TB) string {
	t.Helper()
	if program := os.Getenv("CHROMIUM_BIN"); program != "" {
		return requireExecutable(t, program, "CHROMIUM_BIN has to name one")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	program := filepath.Join(toolsCache(t), "chromium", "chromium")
	return requireExecutable(t, program, "run compat-tests/tools/build-chromium.sh or set CHROMIUM_BIN")
}

func requireExecutable(t testing.TB, path, hint string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(abs)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		t.Fatalf("%s is not an executable file: %s", abs, hint)
	}
	return abs
}

// toolsCache mirrors tools_cache in tools/common.sh.
func toolsCache(t testing.TB) string {
	if dir := os.Getenv("LEASEWAY_TOOLS_CACHE"); dir != "" {
		return dir
	}
	dir := os.Getenv("XDG_CACHE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(home, ".cache")
	}
	return filepath.Join(dir, "leaseway")
}

// repositoryRoot walks up from the working directory to the crate's manifest.
func repositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "Cargo.toml")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no Cargo.toml above %s", start)
		}
	}
}
