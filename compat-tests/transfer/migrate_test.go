package transfersuite

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

// guide is docs/migrate.md, with what is tried out replaced by what a test may use.
type guide struct {
	t *testing.T
	// replace puts the test's addresses and directories into a text of the guide.
	replace *strings.Replacer
	dir     string
	path    string
	units   map[string]string
	running map[string]*harness.Process
}

func openGuide(t *testing.T) (*guide, string) {
	t.Helper()
	text := string(must(os.ReadFile(filepath.Join("..", "..", "docs", "migrate.md")))(t))
	dir := t.TempDir()
	g := &guide{
		t: t, dir: dir,
		replace: strings.NewReplacer(
			"127.0.0.1:2379", harness.FreeAddress(t), "/var/lib/", dir+"/"),
		path: strings.Join([]string{
			filepath.Dir(harness.EtcdTool(t, "etcdutl")), filepath.Dir(harness.Leaseway.Binary(t)), os.Getenv("PATH"),
		}, ":"),
		units:   map[string]string{},
		running: map[string]*harness.Process{},
	}
	unit := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `([^`]+)` \\|$")
	for _, found := range unit.FindAllStringSubmatch(text, -1) {
		g.units[found[1]] = g.replace.Replace(found[2])
	}
	equal(t, "units", len(g.units), 2)
	return g, text
}

// env is the environment of the guide's commands.
func (g *guide) env() []string {
	return append(os.Environ(), "PATH="+g.path, "ETCDCTL_ENDPOINTS="+g.replace.Replace("127.0.0.1:2379"))
}

func (g *guide) start(unit string) {
	g.t.Helper()
	words := strings.Fields(g.units[unit])
	program := map[string]string{
		"etcd": harness.EtcdTool(g.t, "etcd"), "leaseway": harness.Leaseway.Binary(g.t),
	}[words[0]]
	args := words[1:]
	if unit == "etcd" {
		peer := "http://" + harness.FreeAddress(g.t)
		args = append(args, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	}
	process := harness.StartProcess(g.t, unit, nil, program, args...)
	noError(g.t, process.AwaitOutput(harness.ReadyText, time.Minute))
	g.running[unit] = process
}

func (g *guide) stop(unit string) {
	g.t.Helper()
	_, err := g.running[unit].Terminate(20 * time.Second)
	noError(g.t, err)
}

// run executes a block and returns what each of its commands printed.
func (g *guide) run(block string) []string {
	g.t.Helper()
	var outputs []string
	for line := range strings.Lines(g.replace.Replace(block)) {
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == "systemctl" {
			map[string]func(string){"start": g.start, "stop": g.stop}[words[1]](words[2])
			continue
		}
		command := exec.Command("bash", "-euc", line)
		command.Dir, command.Env = g.dir, g.env()
		output, err := command.CombinedOutput()
		if err != nil {
			g.t.Fatalf("%s: %v\n%s", line, err, output)
		}
		outputs = append(outputs, string(output))
	}
	return outputs
}

// TestGuide runs every command of docs/migrate.md.
func TestGuide(t *testing.T) {
	ours(t)
	g, text := openGuide(t)
	var blocks []string
	for _, found := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, found[1])
	}
	equal(t, "blocks", len(blocks), 6)
	client := func() *clientv3.Client {
		address := g.replace.Replace("127.0.0.1:2379")
		client := must(clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 10 * time.Second}))(t)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}

	g.start("etcd")
	fill(t, client(), 11)
	want := stateOf(t, client(), true)
	in, check, snapshot, out, running, backup := blocks[0], blocks[1], blocks[2], blocks[3], blocks[4], blocks[5]
	g.run(snapshot)
	g.run(in)
	sameState(t, stateOf(t, client(), true), want)
	hashes := g.run(check)
	file, server := strings.TrimSpace(hashes[0]), strings.TrimSpace(hashes[1])
	if !strings.HasSuffix(server, file) {
		hash, _, _ := strings.Cut(file, ",")
		if !strings.Contains(server, hash) {
			t.Fatalf("file: %s\nserver: %s", file, server)
		}
	}
	g.run(running)
	g.run(backup)
	g.run(out)

	// What was restored serves, on the same address.
	g.units["etcd"] = strings.Replace(g.units["etcd"], "/etcd ", "/etcd-new ", 1)
	g.start("etcd")
	sameState(t, stateOf(t, client(), true), want)
	g.stop("etcd")
	g.units["leaseway"] = strings.Replace(g.units["leaseway"], "/leaseway ", "/leaseway-restored ", 1)
	g.start("leaseway")
	before := must(client().Get(t.Context(), "k"))(t).Header.Revision
	if before <= 1_000_000_000 {
		t.Fatalf("revision %d after a restore", before)
	}
}
