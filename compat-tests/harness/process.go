package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// logTailBytes bounds what is kept of a process's output.
const logTailBytes = 1 << 20

// Process is a child whose combined output is kept and searched. It is killed,
// by its own process id, when the test ends.
type Process struct {
	t       testing.TB
	name    string
	cmd     *exec.Cmd
	output  *outputLog
	exited  chan struct{}
	exitErr error
}

// StartProcess runs a command; extraEnv is added to the environment.
func StartProcess(t testing.TB, name string, extraEnv []string, path string, args ...string) *Process {
	t.Helper()
	command := exec.Command(path, args...)
	command.Env = append(os.Environ(), extraEnv...)
	p := startCommand(t, name, command)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("last output of %s:\n%s", name, p.output.tail(1500))
		}
	})
	return p
}

// StartProcessWithInput runs a command that reads its standard input from a file.
// Its output is for the caller to show: it is not logged when the test fails.
func StartProcessWithInput(t testing.TB, name string, input *os.File, path string, args ...string) *Process {
	t.Helper()
	command := exec.Command(path, args...)
	command.Stdin = input
	return startCommand(t, name, command)
}

func startCommand(t testing.TB, name string, command *exec.Cmd) *Process {
	t.Helper()
	output := &outputLog{}
	command.Stdout, command.Stderr, command.SysProcAttr = output, output, dieWithParent()
	return startWith(t, name, command, output, func() {})
}

// startWith runs a command whose output goes into output by what the caller has done about it; when drained
// returns, all of an ended process's is there.
func startWith(t testing.TB, name string, command *exec.Cmd, output *outputLog, drained func()) *Process {
	t.Helper()
	p := &Process{t: t, name: name, cmd: command, output: output, exited: make(chan struct{})}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.exitErr = p.cmd.Wait()
		drained()
		close(p.exited)
	}()
	t.Cleanup(p.Kill)
	return p
}

// AwaitOutput waits until the output contains text. It reports an error if the
// process ends first or the deadline passes.
func (p *Process) AwaitOutput(text string, within time.Duration) error {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		if p.output.contains(text) {
			return nil
		}
		select {
		case <-p.exited:
			if p.output.contains(text) {
				return nil
			}
			return fmt.Errorf("%s ended (%v) before printing %q:\n%s", p.name, p.exitErr, text, p.output.tail(3000))
		case <-deadline.C:
			return fmt.Errorf("%s did not print %q within %v:\n%s", p.name, text, within, p.output.tail(3000))
		case <-poll.C:
		}
	}
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Output is what the process printed so far (its tail, if it was very much).
func (p *Process) Output() string { return p.output.tail(logTailBytes) }

// Signal sends a signal if the process still runs.
func (p *Process) Signal(signal syscall.Signal) {
	select {
	case <-p.exited:
	default:
		_ = p.cmd.Process.Signal(signal)
	}
}

// Interrupt sends SIGINT, as a terminal does on Ctrl-C.
func (p *Process) Interrupt() { p.Signal(syscall.SIGINT) }

// Terminate sends SIGTERM and waits for the end; it returns the exit code, or an
// error if the process had to be killed after the deadline.
func (p *Process) Terminate(within time.Duration) (int, error) {
	p.Signal(syscall.SIGTERM)
	if code, ok := p.Wait(within); ok {
		return code, nil
	}
	p.Kill()
	return -1, fmt.Errorf("%s still ran %v after SIGTERM", p.name, within)
}

// Wait returns the exit code once the process has ended by itself; ok is false
// if it still runs at the deadline. A process ended by a signal has code -1.
func (p *Process) Wait(within time.Duration) (code int, ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), true
	case <-timer.C:
		return 0, false
	}
}

// Kill ends the process at once (SIGKILL) and reaps it.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.exited
}

// outputLog keeps the tail of what was written to it.
type outputLog struct {
	mu   sync.Mutex
	data []byte
}

func (o *outputLog) Write(chunk []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, chunk...)
	if excess := len(o.data) - logTailBytes; excess > 0 {
		o.data = append(o.data[:0], o.data[excess:]...)
	}
	return len(chunk), nil
}

func (o *outputLog) contains(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.data, []byte(text))
}

func (o *outputLog) tail(limit int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.data[max(0, len(o.data)-limit):])
}
