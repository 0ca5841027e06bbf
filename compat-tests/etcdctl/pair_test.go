// Package etcdctlsuite runs etcdctl's commands against a real etcd and against
// the subject, and compares what they print.
//
// Both servers see the same commands in the same order. What differs between any
// two etcds (ids, addresses, sizes, durations, hashes) is replaced by names before
// the comparison; everything else has to be equal, exit codes and error texts
// included. With SUBJECT=etcd both are etcd: that run proves the replacement rules.
package etcdctlsuite

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"leaseway/compat-tests/harness"
)

const commandDeadline = 30 * time.Second

// pair is the reference and the subject under the same commands.
type pair struct {
	t     *testing.T
	sides [2]*side
}

// side is one of the two servers with the values captured from its answers.
type side struct {
	t         *testing.T
	name      string
	server    *harness.Server
	variables map[string]string
}

// outcome is what a command is expected to do, so that a mistyped command does not
// pass by failing alike on both sides.
type outcome bool

const (
	succeeds outcome = true
	fails    outcome = false
)

// result is what a command left behind.
type result struct {
	stdout, stderr string
	code           int
}

func newPair(t *testing.T, flags ...string) *pair {
	t.Helper()
	t.Parallel()
	return &pair{t: t, sides: [2]*side{
		newSide(t, "etcd", harness.StartSubject(t, harness.Etcd, flags...)),
		newSide(t, "subject", harness.Start(t, flags...)),
	}}
}

func newSide(t *testing.T, name string, server *harness.Server) *side {
	return &side{t: t, name: name, server: server, variables: map[string]string{}}
}

// ok runs a command that has to succeed. Words are separated by white space;
// {name} stands for a captured value.
func (p *pair) ok(command string) { p.t.Helper(); p.run(command, "", succeeds) }

// fails runs a command that has to fail, with the same exit code on both sides.
func (p *pair) fails(command string) { p.t.Helper(); p.run(command, "", fails) }

// input runs a command that reads the given standard input and has to succeed.
func (p *pair) input(stdin, command string) { p.t.Helper(); p.run(command, stdin, succeeds) }

// each runs a command once for every output format that it knows.
func (p *pair) each(command string) {
	p.t.Helper()
	p.formats(command, "simple", "fields", "json", "table")
}

func (p *pair) formats(command string, formats ...string) {
	p.t.Helper()
	for _, format := range formats {
		p.ok(command + " -w " + format)
	}
	p.ok(command + " -w json --hex")
}

// awaitCount waits until both servers hold so many keys with the prefix.
func (p *pair) awaitCount(prefix string, count int) {
	p.t.Helper()
	for _, s := range p.sides {
		harness.Eventually(p.t, commandDeadline, fmt.Sprintf("%d keys below %s on %s", count, prefix, s.name), func() error {
			answer := s.etcdctl([]string{"get", prefix, "--prefix", "--count-only", "-w", "fields"}, "")
			if want := fmt.Sprintf("\"Count\" : %d\n", count); !strings.Contains(answer.stdout, want) {
				return fmt.Errorf("got %s%s", answer.stdout, answer.stderr)
			}
			return nil
		})
	}
}

// capture runs a command on both sides and keeps what the pattern's group matched.
func (p *pair) capture(variable, pattern, command string) {
	p.t.Helper()
	expression := regexp.MustCompile(pattern)
	for i, r := range p.run(command, "", succeeds) {
		match := expression.FindStringSubmatch(r.stdout)
		if match == nil {
			p.t.Fatalf("%s: %q has no %s", command, r.stdout, pattern)
		}
		p.sides[i].variables[variable] = match[1]
	}
}

// run executes a command on both sides at once and compares.
func (p *pair) run(command, stdin string, want outcome) [2]result {
	p.t.Helper()
	return p.runArgs(strings.Fields(command), stdin, want)
}

// runArgs is run for words that hold white space or nothing.
func (p *pair) runArgs(args []string, stdin string, want outcome) [2]result {
	p.t.Helper()
	var results [2]result
	var group sync.WaitGroup
	for i, s := range p.sides {
		group.Go(func() { results[i] = s.etcdctl(args, stdin) })
	}
	group.Wait()
	command := strings.Join(args, " ")
	for i, r := range results {
		if (r.code == 0) != (want == succeeds) {
			p.t.Fatalf("etcdctl %s on %s: exit code %d\n%s%s", command, p.sides[i].name, r.code, r.stdout, r.stderr)
		}
	}
	if results[0].code != results[1].code {
		p.t.Errorf("exit code of: etcdctl %s: etcd %d, subject %d", command, results[0].code, results[1].code)
	}
	p.compare("standard output of: etcdctl "+command, results[0].stdout, results[1].stdout)
	p.compare("standard error of: etcdctl "+command, results[0].stderr, results[1].stderr)
	return results
}

// compare requires equal texts after normalising; it goes on after a difference,
// so that one run shows them all.
func (p *pair) compare(what, reference, subject string) {
	p.t.Helper()
	want, got := p.sides[0].normalise(reference), p.sides[1].normalise(subject)
	if want != got {
		p.t.Errorf("%s\n--- etcd\n%s\n--- subject\n%s", what, want, got)
	}
}

// args fills in captured values and adds the endpoint.
func (s *side) args(args []string) []string {
	filled := make([]string, 0, len(args)+1)
	for _, arg := range args {
		for name, value := range s.variables {
			arg = strings.ReplaceAll(arg, "{"+name+"}", value)
		}
		filled = append(filled, strings.ReplaceAll(arg, "{endpoint}", s.server.Endpoint))
	}
	return append([]string{"--endpoints=" + s.server.Endpoint}, filled...)
}

func (s *side) etcdctl(args []string, stdin string) result {
	ctx, cancel := context.WithTimeout(context.Background(), commandDeadline)
	defer cancel()
	command := exec.CommandContext(ctx, harness.EtcdTool(s.t, "etcdctl"), s.args(args)...)
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	code := 0
	if err := command.Run(); err != nil {
		code = -1
		if command.ProcessState != nil {
			code = command.ProcessState.ExitCode()
		}
		if ctx.Err() != nil {
			fmt.Fprintf(&stderr, "killed after %v", commandDeadline)
		}
	}
	return result{stdout.String(), stderr.String(), code}
}

// background is one long-running command on both sides.
type background struct {
	p         *pair
	command   string
	processes [2]*harness.Process
	inputs    [2]*os.File
}

// start runs a command that does not end by itself. Its standard input stays open.
func (p *pair) start(command string) *background {
	p.t.Helper()
	b := &background{p: p, command: command}
	for i, s := range p.sides {
		reader, writer, err := os.Pipe()
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = writer.Close() })
		b.inputs[i] = writer
		b.processes[i] = harness.StartProcessWithInput(p.t, "etcdctl on "+s.name, reader,
			harness.EtcdTool(p.t, "etcdctl"), s.args(strings.Fields(command))...)
		_ = reader.Close()
	}
	return b
}

// write sends text to the standard input of both processes.
func (b *background) write(text string) {
	b.p.t.Helper()
	for _, input := range b.inputs {
		if _, err := input.WriteString(text); err != nil {
			b.p.t.Fatal(err)
		}
	}
}

// await waits until both processes have printed the text.
func (b *background) await(text string) {
	b.p.t.Helper()
	for _, process := range b.processes {
		if err := process.AwaitOutput(text, commandDeadline); err != nil {
			b.p.t.Fatalf("%s: %v", b.command, err)
		}
	}
}

// stop interrupts both processes, as a user does, and compares all they printed.
func (b *background) stop() {
	b.p.t.Helper()
	b.end(func(process *harness.Process) { process.Interrupt() })
}

// kill ends both processes without comparing what they printed.
func (b *background) kill() {
	for _, process := range b.processes {
		process.Kill()
	}
}

// finish closes the input, waits for both processes to end and compares.
func (b *background) finish() {
	b.p.t.Helper()
	for _, input := range b.inputs {
		_ = input.Close()
	}
	b.end(func(*harness.Process) {})
}

func (b *background) end(how func(*harness.Process)) {
	b.p.t.Helper()
	var codes [2]int
	for i, process := range b.processes {
		how(process)
		code, ended := process.Wait(commandDeadline)
		if !ended {
			b.p.t.Fatalf("%s on %s did not end", b.command, b.p.sides[i].name)
		}
		codes[i] = code
	}
	b.p.compare("output of: etcdctl "+b.command, b.processes[0].Output(), b.processes[1].Output())
	if codes[0] != codes[1] {
		b.p.t.Errorf("exit code of: etcdctl %s: etcd %d, subject %d", b.command, codes[0], codes[1])
	}
}
