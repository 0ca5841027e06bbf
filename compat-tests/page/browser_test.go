package pagesuite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"leaseway/compat-tests/harness"
)

// callDeadline bounds one command to the browser, its start included.
const callDeadline = 60 * time.Second

// message is what goes over the pipe in either direction.
type message struct {
	ID      int64           `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// browser is a running Chromium. Commands and events are JSON on two pipes, each ended by a zero byte.
type browser struct {
	cmd     *exec.Cmd
	profile string
	stderr  bytes.Buffer
	pipe    io.WriteCloser
	ended   chan struct{}

	mu       sync.Mutex
	next     int64
	waiting  map[int64]chan message
	sessions map[string]func(message)
}

// args are of a browser that asks nobody for anything by itself. It runs as root in containers as well, where
// Chromium's own sandbox can't be had; it is shown nothing but the server under test.
func args(profile string) []string {
	return []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-extensions", "--disable-default-apps", "--metrics-recording-only",
		"--disable-background-timer-throttling", "--disable-renderer-backgrounding",
		"--disable-backgrounding-occluded-windows", "--force-color-profile=srgb", "--lang=en-US",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe",
		"--user-data-dir=" + profile, "about:blank",
	}
}

func launch(program string) (*browser, error) {
	profile, err := os.MkdirTemp("", "leaseway-page-")
	if err != nil {
		return nil, err
	}
	b := &browser{
		profile: profile, ended: make(chan struct{}),
		waiting: map[int64]chan message{}, sessions: map[string]func(message){},
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b.pipe = ourOut
	b.cmd = exec.Command(program, args(profile)...)
	b.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	b.cmd.Stderr = &b.stderr
	b.cmd.Env = append(os.Environ(), "HOME="+profile)
	// Its helpers are in its process group, and end with it.
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	theirIn.Close()
	theirOut.Close()
	go b.read(ourIn)
	return b, nil
}

// read hands out answers and events until the browser closes its end.
func (b *browser) read(pipe io.ReadCloser) {
	defer close(b.ended)
	defer pipe.Close()
	reader := bufio.NewReaderSize(pipe, 1<<16)
	for {
		text, err := reader.ReadBytes(0)
		if err != nil {
			return
		}
		var got message
		if json.Unmarshal(text[:len(text)-1], &got) != nil {
			continue
		}
		b.mu.Lock()
		answer, event := b.waiting[got.ID], b.sessions[got.Session]
		delete(b.waiting, got.ID)
		b.mu.Unlock()
		switch {
		case got.ID != 0 && answer != nil:
			answer <- got
		case got.ID == 0 && event != nil:
			event(got)
		}
	}
}

// call runs a command of the protocol, in a page's session if one is given, and decodes its result into out.
func (b *browser) call(session, method string, params, out any) error {
	encoded, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = answer
	text, err := json.Marshal(message{ID: id, Session: session, Method: method, Params: encoded})
	if err == nil {
		_, err = b.pipe.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case got := <-answer:
		if got.Error != nil {
			return fmt.Errorf("%s: %s", method, got.Error.Message)
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(got.Result, out)
	case <-b.ended:
		return fmt.Errorf("%s: the browser has ended", method)
	case <-time.After(callDeadline):
		return fmt.Errorf("%s: no answer within %v", method, callDeadline)
	}
}

// close ends the browser and everything that it has started.
func (b *browser) close() {
	_ = b.call("", "Browser.close", struct{}{}, nil)
	select {
	case <-b.ended:
	case <-time.After(5 * time.Second):
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	b.pipe.Close()
	_ = b.cmd.Wait()
	_ = os.RemoveAll(b.profile)
}

// shared is the one browser of this test process; every test has a context of its own in it, as different
// people have different browsers.
var shared struct {
	sync.Mutex
	browser *browser
}

func theBrowser(t *testing.T) *browser {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.browser == nil {
		b, err := launch(harness.Chromium(t))
		if err != nil {
			t.Fatal(err)
		}
		shared.browser = b
		if err := b.call("", "Browser.getVersion", struct{}{}, nil); err != nil {
			t.Fatalf("%v\n%s", err, b.stderr.String())
		}
	}
	return shared.browser
}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Lock()
	if shared.browser != nil {
		shared.browser.close()
	}
	shared.Unlock()
	os.Exit(code)
}
