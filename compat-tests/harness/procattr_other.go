//go:build !linux

package harness

import "syscall"

// dieWithParent has no counterpart outside Linux: cleanups must do.
func dieWithParent() *syscall.SysProcAttr { return nil }
