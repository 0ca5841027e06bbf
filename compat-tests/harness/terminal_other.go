//go:build !linux

package harness

import "testing"

// Terminal is one that a process runs on, with a test before it.
type Terminal struct{}

// StartOnTerminal is for Linux only.
func StartOnTerminal(t testing.TB, _, _ string, _ ...string) (*Process, *Terminal) {
	t.Skip("terminals are made on Linux only")
	return nil, nil
}

// Type presses keys.
func (t *Terminal) Type(string) {}
