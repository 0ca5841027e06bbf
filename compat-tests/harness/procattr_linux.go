package harness

import "syscall"

// dieWithParent makes the kernel end the child when the test process dies
// without running its cleanups, as it does when a test times out.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
