package transfersuite

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
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

// openGuide reads it; more pairs are replaced as well.
func openGuide(t *testing.T, more ...string) (*guide, string) {
	t.Helper()
	text := string(expect.Must(os.ReadFile(filepath.Join("..", "..", "docs", "migrate.md")))(t))
	dir := t.TempDir()
	g := &guide{
		t: t, dir: dir,
		replace: strings.NewReplacer(append(more,
			"127.0.0.1:2379", harness.FreeAddress(t), "/var/lib/", dir+"/")...),
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
	expect.Equal(t, "units", len(g.units), 2)
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
	expect.NoError(g.t, process.AwaitOutput(harness.ReadyText, time.Minute))
	g.running[unit] = process
}

func (g *guide) stop(unit string) {
	g.t.Helper()
	_, err := g.running[unit].Terminate(20 * time.Second)
	expect.NoError(g.t, err)
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

// client is one of whatever serves at the guide's address.
func (g *guide) client() *clientv3.Client {
	g.t.Helper()
	address := g.replace.Replace("127.0.0.1:2379")
	client := expect.Must(clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 10 * time.Second}))(g.t)
	g.t.Cleanup(func() { _ = client.Close() })
	return client
}

// blocks are those of one kind, "sh" or "console".
func blocks(text, kind string) []string {
	var found []string
	for _, block := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		found = append(found, block[1])
	}
	return found
}

// said compares what a command printed with the lines below it in a block: "..." stands for anything, and one
// number for another.
func (g *guide) said(output, lines string) {
	g.t.Helper()
	pattern := regexp.QuoteMeta(g.replace.Replace(strings.TrimSpace(lines)))
	pattern = strings.ReplaceAll(pattern, `\.\.\.`, ".*")
	pattern = regexp.MustCompile(`(revision|at) \d+`).ReplaceAllString(pattern, `$1 \d+`)
	pattern = strings.ReplaceAll(pattern, "\n", `\n(?:.*\n)*?`)
	if !regexp.MustCompile("(?m)^" + pattern + "$").MatchString(output) {
		g.t.Fatalf("printed:\n%s\nwhich is not as in the guide:\n%s", output, lines)
	}
}

// TestGuide runs the commands of docs/migrate.md, apart from those that are told to cut over and those of a
// cluster, which have tests below.
func TestGuide(t *testing.T) {
	ours(t)
	g, text := openGuide(t, "--data-dir DIR", "--data-dir at-once")
	commands := blocks(text, "sh")
	expect.Equal(t, "blocks of commands", len(commands), 6)
	expect.Equal(t, "blocks of commands and what they print", len(blocks(text, "console")), 2)
	expect.Equal(t, "blocks", strings.Count(text, "\n```"), 2*(6+2))
	atOnce := regexp.MustCompile("`(leaseway import --from-endpoint [^`]+)`").FindStringSubmatch(text)
	if atOnce == nil {
		t.Fatal("no import from an endpoint")
	}

	g.start("etcd")
	fill(t, g.client(), 11)
	want := stateOf(t, g.client(), true)
	in, check, snapshot, out, running, backup := commands[0], commands[1], commands[2], commands[3], commands[4], commands[5]
	g.run(snapshot)
	g.run(atOnce[1])
	g.run(in)
	sameState(t, stateOf(t, g.client(), true), want)
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
	sameState(t, stateOf(t, g.client(), true), want)
	g.stop("etcd")
	leaseway := g.units["leaseway"]
	for _, imported := range []string{"leaseway-rehearsal", "at-once"} {
		g.units["leaseway"] = strings.Replace(leaseway, "/leaseway ", "/"+imported+" ", 1)
		g.start("leaseway")
		sameState(t, stateOf(t, g.client(), true), want)
		g.stop("leaseway")
	}
	g.units["leaseway"] = strings.Replace(leaseway, "/leaseway ", "/leaseway-restored ", 1)
	g.start("leaseway")
	before := expect.Must(g.client().Get(t.Context(), "k"))(t).Header.Revision
	if before <= 1_000_000_000 {
		t.Fatalf("revision %d after a restore", before)
	}
}

// TestGuideWithoutAPause runs the guide's import that follows, on a terminal, until ENTER.
func TestGuideWithoutAPause(t *testing.T) {
	ours(t)
	g, text := openGuide(t)
	command, lines, _ := strings.Cut(strings.TrimPrefix(blocks(text, "console")[0], "$ "), "\n")
	words := strings.Fields(g.replace.Replace(command))
	expect.Equal(t, "command", strings.Join(words[:2], " "), "leaseway import")
	g.start("etcd")
	fill(t, g.client(), 12)
	process, terminal := harness.StartOnTerminal(t, "import", harness.Leaseway.Binary(t), words[1:]...)
	expect.NoError(t, process.AwaitOutput("or press ENTER", 30*time.Second))
	writing := write(t, g.client())
	writing.more(200)
	writing.stop()
	settle(t, g.client())
	want := stateOf(t, g.client(), true)
	terminal.Type("\r")
	code, ended := process.Wait(30 * time.Second)
	expect.Equal(t, "ended", ended, true)
	output := strings.ReplaceAll(process.Output(), "\r\n", "\n")
	// A bar that was cleared again.
	output = regexp.MustCompile(`[^\n]*\x1b\[K`).ReplaceAllString(output, "")
	if code != 0 {
		t.Fatalf("code %d: %s", code, output)
	}
	g.said(output, lines)
	g.stop("etcd")
	g.start("leaseway")
	sameState(t, stateOf(t, g.client(), true), want)
}

// TestGuideGateways runs the guide's import into a cluster.
func TestGuideGateways(t *testing.T) {
	t.Parallel()
	if harness.CurrentSubject(t) != harness.Gateway {
		t.Skip("needs a cluster")
	}
	keyspace := fmt.Sprintf("team-%x", rand.Uint64())
	g, text := openGuide(t, "oxia-0:6648,oxia-1:6648", os.Getenv("OXIA_ADDRESSES"), "team-1", keyspace)
	command, lines, _ := strings.Cut(strings.TrimPrefix(blocks(text, "console")[1], "$ "), "\n")
	g.start("etcd")
	fill(t, g.client(), 13)
	want := stateOf(t, g.client(), true)
	g.run(strings.SplitAfter(blocks(text, "sh")[2], "\n")[0])
	g.stop("etcd")
	g.said(g.run(command)[0], lines)
	backend := regexp.MustCompile(`--backend '([^']+)'`).FindStringSubmatch(g.replace.Replace(command))
	gateway := harness.StartSubject(t, harness.Leaseway, "--backend="+backend[1])
	sameState(t, stateOf(t, gateway.Client(), true), want)
}
