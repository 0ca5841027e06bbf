package faultsuite

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stuckNodes ends every Oxia process with SIGQUIT, upon which it prints what each
// of its goroutines does, and says which of them wait for a lock while they change
// the term or end a session: these are the server's own deadlocks. Only called
// when all is lost.
func (w *world) stuckNodes() string {
	if w.oxia == nil {
		return ""
	}
	var found []string
	logs, _ := filepath.Glob(filepath.Join(w.oxia.Dir, "*", "log"))
	for _, log := range logs {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(log), "pid"))
		pid, parseErr := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || parseErr != nil {
			continue
		}
		// The cluster's own way to tell that this is still the process that it started.
		if at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || at != filepath.Dir(log) {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGQUIT)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		found = append(found, lockedGoroutines(log)...)
	}
	if len(found) == 0 {
		return "\nno Oxia node seems to be stuck"
	}
	return "\nstuck within Oxia, which is not the subject's fault:\n" + strings.Join(found, "\n")
}

// lockedGoroutines waits for the dump and picks from it.
func lockedGoroutines(log string) []string {
	var text string
	for range 100 {
		content, _ := os.ReadFile(log)
		if text = string(content); strings.Contains(text, "SIGQUIT") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	var found []string
	_, dump, _ := strings.Cut(text, "SIGQUIT")
	for _, goroutine := range strings.Split(dump, "\n\n") {
		waits := strings.Contains(goroutine, "sync.Mutex.Lock") || strings.Contains(goroutine, "sync.RWMutex.Lock") ||
			strings.Contains(goroutine, "sync.WaitGroup.Wait") || strings.Contains(goroutine, "semacquire")
		for _, place := range []string{".NewTerm(", ".BecomeLeader(", "(*session)."} {
			if waits && strings.Contains(goroutine, place) {
				state, _, _ := strings.Cut(strings.TrimSpace(goroutine), "\n")
				found = append(found, fmt.Sprintf("%s: %s in %s)", filepath.Base(filepath.Dir(log)), state, strings.TrimSuffix(place, "(")))
				break
			}
		}
	}
	return found
}
