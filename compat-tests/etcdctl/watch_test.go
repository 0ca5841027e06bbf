package etcdctlsuite

import "testing"

func TestWatch(t *testing.T) {
	p := newPair(t)
	p.ok("put k1 a")
	p.ok("put k2 b")
	p.ok("put k1 c")
	p.ok("del k2")
	p.ok("put end 1")
	for _, format := range []string{"simple", "fields", "json"} {
		for command, last := range map[string]string{
			"watch k --prefix --rev=2":                             "k2",
			"watch k --prefix --rev=2 --prev-kv":                   "k2",
			"watch k1 k9 --rev=3":                                  "k2",
			"watch k1 --rev=1":                                     "c",
			"watch k --prefix --rev=2 --progress-notify --prev-kv": "k2",
		} {
			b := p.start(command + " -w " + format)
			b.await(lastText(format, last))
			b.stop()
		}
	}
}

// lastText is how a format shows the text that ends a watch's expected output.
func lastText(format, text string) string {
	switch {
	case format == "simple":
		return "\n" + text + "\n"
	case format == "json" && text == "k2":
		return `"type":1,"kv":{"key":"azI="`
	case format == "json":
		return `"value":"Yw=="`
	case text == "k2":
		return "\"Type\" : DELETE"
	default:
		return "\"Value\" : \"c\""
	}
}

func TestWatchGoesOn(t *testing.T) {
	p := newPair(t)
	b := p.start("watch k --prefix --rev=1 --prev-kv")
	for _, command := range []string{"put k1 one", "put k1 two", "del k1", "put k3 three"} {
		p.ok(command)
	}
	p.input("\nput k4 four\ndel k3\n\n\n", "txn")
	b.await("four")
	b.stop()
}

func TestWatchRunsACommand(t *testing.T) {
	p := newPair(t)
	p.ok("put k one")
	p.ok("put k two")
	b := p.start("watch k --rev=2 -- printenv ETCD_WATCH_REVISION ETCD_WATCH_EVENT_TYPE ETCD_WATCH_KEY ETCD_WATCH_VALUE")
	b.await("\"two\"")
	b.stop()
}

func TestWatchInteractively(t *testing.T) {
	p := newPair(t)
	p.ok("put a one")
	p.ok("put b two")
	b := p.start("watch -i")
	b.write("watch a --rev=2\n")
	b.await("one")
	b.write("watch b --rev=2 --prev-kv\n")
	b.await("two")
	p.ok("put b three")
	b.await("three")
	// Asking for progress has an answer that depends on when it is asked; the
	// suite of the Go client covers it.
	b.stop()
}

func TestWatchRefusals(t *testing.T) {
	p := newPair(t)
	for range 3 {
		p.ok("put k v")
	}
	p.ok("compaction 3")
	p.fails("watch k --rev=2")
	p.fails("watch b a")
	p.fails("watch")
	p.fails("watch a b --prefix")
}
