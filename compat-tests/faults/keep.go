package faultsuite

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// keep writes all that is known of a run into a directory, for whoever has to find
// out what happened: FAULTS_KEEP.
func (w *world) keep() {
	dir := os.Getenv("FAULTS_KEEP")
	if dir == "" {
		return
	}
	dir = filepath.Join(dir, fmt.Sprintf("%s-%d", w.subject, w.seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Error(err)
		return
	}
	files := map[string]string{"operations": w.operationsText(), "watchers": w.watchersText()}
	for number, server := range w.servers {
		for life, process := range server.Processes() {
			files[fmt.Sprintf("server-%d-process-%d.log", number, life)] = process.Output()
		}
	}
	if w.oxia != nil {
		logs, _ := filepath.Glob(filepath.Join(w.oxia.Dir, "*", "log"))
		for _, log := range logs {
			text, _ := os.ReadFile(log)
			files["oxia-"+filepath.Base(filepath.Dir(log))+".log"] = string(text)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			w.t.Error(err)
		}
	}
	w.t.Logf("kept in %s; the run began at %s", dir, w.recording.began.UTC().Format("15:04:05.000000"))
}

func (w *world) operationsText() string {
	w.recording.mu.Lock()
	defer w.recording.mu.Unlock()
	sorted := append([]*operation(nil), w.recording.Operations...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Call < sorted[j].Call })
	var text strings.Builder
	for _, o := range sorted {
		fmt.Fprintf(&text, "%v expect %d deleted %d previous %v rows %v\n", o, o.Expect, o.Deleted, o.Previous, o.Rows)
	}
	return text.String()
}

func (w *world) watchersText() string {
	w.recording.mu.Lock()
	defer w.recording.mu.Unlock()
	var text strings.Builder
	for _, watcher := range w.recording.Watchers {
		for _, s := range watcher.Sessions {
			fmt.Fprintf(&text, "%s: at server %v from %d, called %v, created with %d, ended with %q\n", watcher.Name, s.At, s.Start, s.Called, s.Created, s.Canceled)
			for _, answer := range s.Answers {
				fmt.Fprintf(&text, "    %v header %d:", answer.At, answer.Revision)
				for _, e := range answer.Events {
					fmt.Fprintf(&text, " %d %q", e.Row.Mod, e.Row.Key)
				}
				text.WriteString("\n")
			}
		}
	}
	return text.String()
}
