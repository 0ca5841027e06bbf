package harness

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is one that a process runs on, with a test before it.
type Terminal struct {
	t    testing.TB
	keys *os.File
}

// StartOnTerminal runs a command on a terminal of its own, as from a shell: it reads what is typed, its output is what is
// seen there, and Ctrl-C is a signal.
func StartOnTerminal(t testing.TB, name, path string, args ...string) (*Process, *Terminal) {
	t.Helper()
	keys, screen, err := openTerminal()
	if err != nil {
		t.Fatalf("a terminal: %v", err)
	}
	t.Cleanup(func() { keys.Close() })
	command := exec.Command(path, args...)
	command.Stdin, command.Stdout, command.Stderr = screen, screen, screen
	command.SysProcAttr = dieWithParent()
	command.SysProcAttr.Setsid, command.SysProcAttr.Setctty = true, true
	output, drained := &outputLog{}, make(chan struct{})
	p := startWith(t, name, command, output, func() { <-drained })
	screen.Close()
	go func() {
		// It fails when nobody has the terminal open any more.
		_, _ = io.Copy(output, keys)
		close(drained)
	}()
	return p, &Terminal{t: t, keys: keys}
}

// Type presses keys: "\r" is ENTER, "\x03" Ctrl-C, "\x04" Ctrl-D.
func (t *Terminal) Type(keys string) {
	t.t.Helper()
	if _, err := t.keys.WriteString(keys); err != nil {
		t.t.Fatal(err)
	}
}

func openTerminal() (keys, screen *os.File, err error) {
	keys, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		keys.Close()
		return nil, nil, err
	}
	return keys, screen, nil
}
