package etcdctlsuite

import (
	"strings"
	"testing"
)

func TestCompactionAndDefrag(t *testing.T) {
	p := newPair(t)
	for range 5 {
		p.ok("put k v")
	}
	p.ok("compaction 3")
	p.ok("compaction 5 --physical")
	p.fails("compaction 4")
	p.fails("compaction 99")
	p.fails("compaction")
	p.fails("compaction soon")
	p.ok("defrag")
	p.ok("defrag --cluster")
	p.ok("get k -w json")
}

func TestEndpoint(t *testing.T) {
	p := newPair(t)
	p.ok("put k v")
	for _, command := range []string{"endpoint status", "endpoint health", "endpoint hashkv"} {
		p.each(command)
		p.ok(command + " --cluster")
	}
	p.ok("endpoint hashkv --rev=2 -w json")
	p.ok("put k w")
	p.ok("endpoint hashkv --rev=2 -w json")
	p.ok("endpoint hashkv -w json")
	p.fails("endpoint hashkv --rev=99")
}

func TestMember(t *testing.T) {
	p := newPair(t)
	p.each("member list")
	p.fails("member remove 4d2")
	p.fails("member promote 4d2")
	p.fails("member update 4d2 --peer-urls=http://127.0.0.1:1")
	p.fails("move-leader 4d2")
	p.ok("version")
}

func TestAlarm(t *testing.T) {
	p := newPair(t, "--quota-backend-bytes=500000")
	p.ok("alarm list")
	p.ok("put k1 small")
	p.ok("put k2 small")
	p.runArgs([]string{"put", "k3"}, strings.Repeat("x", 900_000), fails)
	p.formats("alarm list", "simple", "fields", "json")
	p.fails("endpoint health")
	p.fails("lease grant 100")
	p.ok("get k --prefix --keys-only")
	p.ok("endpoint status -w json")
	p.ok("del k --prefix")
	p.ok("compaction 4 --physical")
	p.ok("defrag")
	p.ok("alarm disarm")
	p.ok("alarm disarm")
	p.ok("put k1 small")
	p.ok("endpoint health")
}

func TestMakeMirror(t *testing.T) {
	p := newPair(t)
	for _, key := range []string{"src/a", "src/b", "other"} {
		p.ok("put " + key + " v")
	}
	b := p.start("make-mirror --prefix=src/ --dest-prefix=dst/ {endpoint}")
	p.awaitCount("dst/", 2)
	p.ok("put src/c v")
	p.ok("del src/a")
	p.input("\nput src/d v\nput src/e v\n\n\n", "txn")
	p.awaitCount("dst/", 4)
	b.kill()
	p.ok("get dst/ --prefix")
	p.ok("get src/ --prefix")
}

func TestSnapshotSave(t *testing.T) {
	p := newPair(t)
	p.ok("put k v")
	for _, s := range p.sides {
		s.variables["dir"] = t.TempDir()
	}
	p.ok("snapshot save {dir}/snapshot.db")
}

func TestUnreachableServer(t *testing.T) {
	p := newPair(t)
	for _, s := range p.sides {
		s.server.Stop()
	}
	p.fails("get k --dial-timeout=300ms --command-timeout=1s")
	p.fails("endpoint health --dial-timeout=300ms --command-timeout=1s")
	for _, s := range p.sides {
		s.server.Resume()
	}
	p.ok("put k v")
}
