package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// oxiaDeadline bounds one call of the script, which has deadlines of its own.
const oxiaDeadline = 2 * time.Minute

// Coordinator is the name of the process that elects the leaders of an Oxia cluster.
const Coordinator = "coordinator"

// Oxia is a cluster of real Oxia nodes, run by compat-tests/tools/oxia-cluster.
// It ends with the test, or with the test process. Nodes are called "1", "2", ...
type Oxia struct {
	// Dir holds configuration, data and logs.
	Dir string
	// Addresses are the nodes', by number from 0.
	Addresses []string

	t      testing.TB
	script string
}

// StartOxia runs a cluster and waits until it takes writes. flags are those of
// the script: --nodes N, --shards N, --standalone.
func StartOxia(t testing.TB, flags ...string) *Oxia {
	t.Helper()
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	o := &Oxia{t: t, Dir: t.TempDir(), script: filepath.Join(root, "compat-tests", "tools", "oxia-cluster")}
	t.Cleanup(func() {
		if t.Failed() {
			o.logTails()
		}
		if _, err := o.call("stop"); err != nil {
			t.Errorf("stop Oxia: %v", err)
		}
	})
	flags = append(flags, "--owner", strconv.Itoa(os.Getpid()))
	o.Addresses = strings.Fields(o.must("start", flags...))
	return o
}

// Backend is the value of --backend that names a keyspace in this cluster.
func (o *Oxia) Backend(keyspace string) string {
	return fmt.Sprintf("oxia://%s/default?keyspace=%s", strings.Join(o.Addresses, ","), keyspace)
}

// Leader is the node that leads the first shard.
func (o *Oxia) Leader() string { o.t.Helper(); return strings.TrimSpace(o.must("leader")) }

// AwaitLeader is Leader for a moment at which an election may be on its way.
func (o *Oxia) AwaitLeader() string {
	o.t.Helper()
	var leader string
	Eventually(o.t, startDeadline, "a leader of the shard", func() error {
		output, err := o.call("leader")
		leader = strings.TrimSpace(output)
		return err
	})
	return leader
}

// Kill ends a node, or the Coordinator, without warning.
func (o *Oxia) Kill(node string) { o.t.Helper(); o.must("kill", node) }

// Pause stops a node where it is.
func (o *Oxia) Pause(node string) { o.t.Helper(); o.must("pause", node) }

// Resume lets a paused node go on.
func (o *Oxia) Resume(node string) { o.t.Helper(); o.must("resume", node) }

// Restart starts a node again with its data and addresses.
func (o *Oxia) Restart(node string) { o.t.Helper(); o.must("restart", node) }

// AwaitWrite waits until the cluster takes a write.
func (o *Oxia) AwaitWrite() { o.t.Helper(); o.must("wait") }

func (o *Oxia) must(command string, arguments ...string) string {
	o.t.Helper()
	output, err := o.call(command, arguments...)
	if err != nil {
		o.t.Fatalf("oxia-cluster %s %s: %v", command, strings.Join(arguments, " "), err)
	}
	return output
}

func (o *Oxia) call(command string, arguments ...string) (string, error) {
	// Not the test's own context: that one has ended when the cluster is stopped.
	ctx, cancel := context.WithTimeout(context.Background(), oxiaDeadline)
	defer cancel()
	program := exec.CommandContext(ctx, o.script, append([]string{command, o.Dir}, arguments...)...)
	var errors strings.Builder
	program.Stderr = &errors
	program.WaitDelay = time.Second
	output, err := program.Output()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, errors.String())
	}
	return string(output), nil
}

func (o *Oxia) logTails() {
	logs, _ := filepath.Glob(filepath.Join(o.Dir, "*", "log"))
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			continue
		}
		o.t.Logf("last output of %s:\n%s", filepath.Base(filepath.Dir(log)), text[max(0, len(text)-1500):])
	}
}
