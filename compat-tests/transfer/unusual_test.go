package transfersuite

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// TestImportOfTheUnusual reads the directory of an etcd whose log lies elsewhere, which may hold what the
// database does not.
func TestImportOfTheUnusual(t *testing.T) {
	ours(t)
	other := harness.StartSubject(t, harness.Etcd)
	other.Stop()
	log := filepath.Join(t.TempDir(), "wal")
	etcd := harness.StartSubject(t, harness.Etcd, "--wal-dir="+log)
	fill(t, etcd.Client(), 31)
	want := stateOf(t, etcd.Client(), true)
	database := filepath.Join(etcd.DataDir, "member", "snap", "db")
	dir := filepath.Join(t.TempDir(), "data")
	try := func(words string, from string, flags ...string) {
		t.Helper()
		refused(t, words, append([]string{"import", from, "--data-dir", dir}, flags...)...)
		if _, err := os.Stat(dir); err == nil {
			t.Fatal("a directory was made")
		}
	}
	try("is in use", etcd.DataDir, "--wal-dir", log)
	try("is in use", database, "--skip-hash-check")
	etcd.Stop()
	try("has no log of etcd's", etcd.DataDir)
	try("has no log of etcd's", etcd.DataDir, "--wal-dir", t.TempDir())
	try("do not belong together", etcd.DataDir, "--wal-dir", filepath.Join(other.DataDir, "member", "wal"))
	try("either --wal-dir or --skip-wal-check", etcd.DataDir, "--wal-dir", log, "--skip-wal-check")
	try("goes with etcd's data directory", database, "--wal-dir", log)
	for _, flags := range [][]string{{etcd.DataDir, "--wal-dir", log}, {etcd.DataDir, "--skip-wal-check"}, {database, "--skip-hash-check"}} {
		into := filepath.Join(t.TempDir(), "data")
		leaseway(t, append([]string{"import", "--data-dir", into}, flags...)...)
		server := harness.StartOn(t, harness.Leaseway, into)
		sameState(t, stateOf(t, server.Client(), true), want)
		server.Stop()
	}
}

// TestImportOfKilledEtcdWithItsLogElsewhere refuses what only the log has, wherever that is.
func TestImportOfKilledEtcdWithItsLogElsewhere(t *testing.T) {
	ours(t)
	log := filepath.Join(t.TempDir(), "wal")
	for _, flags := range [][]string{{"--wal-dir=" + log}, nil} {
		etcd := harness.StartSubject(t, harness.Etcd,
			append(flags, "--backend-batch-interval=1h", "--backend-batch-limit=1000000")...)
		expect.Must(etcd.Client().Put(t.Context(), "k", "v"))(t)
		etcd.Kill()
		dir := filepath.Join(t.TempDir(), "data")
		refused(t, "commands that are not in its database",
			append([]string{"import", etcd.DataDir, "--data-dir", dir}, flags...)...)
		if flags == nil {
			// The file in its place is what the directory is.
			database := filepath.Join(etcd.DataDir, "member", "snap", "db")
			refused(t, "commands that are not in its database", "import", database, "--skip-hash-check", "--data-dir", dir)
		}
		leaseway(t, "import", etcd.DataDir, "--skip-wal-check", "--data-dir", dir)
		server := harness.StartOn(t, harness.Leaseway, dir)
		expect.Equal(t, "keys", expect.Must(server.Client().Get(t.Context(), "k"))(t).Count, int64(0))
		server.Stop()
		// What was left out is in the log still.
		etcd.Resume()
		expect.Equal(t, "keys", expect.Must(etcd.Client().Get(t.Context(), "k"))(t).Count, int64(1))
		etcd.Stop()
	}
}

// noteRemaining writes into the database of a stopped etcd how many seconds its leases have left, as an etcd that
// notes that would have.
func noteRemaining(t *testing.T, dir string, remaining int64) {
	t.Helper()
	path := filepath.Join(dir, "member", "snap", "db")
	db := expect.Must(bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second}))(t)
	defer db.Close()
	expect.NoError(t, db.Update(func(tx *bolt.Tx) error {
		leases := tx.Bucket([]byte("lease"))
		noted := map[string][]byte{}
		expect.NoError(t, leases.ForEach(func(key, value []byte) error {
			value = protowire.AppendTag(append([]byte{}, value...), 3, protowire.VarintType)
			noted[string(key)] = protowire.AppendVarint(value, uint64(remaining))
			return nil
		}))
		for key, value := range noted {
			expect.NoError(t, leases.Put([]byte(key), value))
		}
		return nil
	}))
}

// TestFollowedLeasesHaveTheirTime renews leases that were noted to end soon, and grants others, while they are
// followed: none ends earlier than at the source, and all have their keys.
func TestFollowedLeasesHaveTheirTime(t *testing.T) {
	t.Parallel()
	if !harness.CurrentSubject(t).IsOurs() {
		t.Skip("leaseway's own command")
	}
	etcd := harness.StartSubject(t, harness.Etcd, "--feature-gates=LeaseCheckpoint=true,LeaseCheckpointPersist=true")
	grant := func(key string) clientv3.LeaseID {
		id := expect.Must(etcd.Client().Grant(t.Context(), 5000))(t).ID
		expect.Must(etcd.Client().Put(t.Context(), key, "v", clientv3.WithLease(id)))(t)
		return id
	}
	left := func(server *harness.Server, id clientv3.LeaseID) int64 {
		return expect.Must(server.Client().TimeToLive(t.Context(), id))(t).TTL
	}
	renewed, quiet := grant("renewed"), grant("quiet")
	etcd.Stop()
	noteRemaining(t, etcd.DataDir, 300)
	etcd.Resume()
	for _, id := range []clientv3.LeaseID{renewed, quiet} {
		if ttl := left(etcd, id); ttl > 300 {
			t.Fatalf("%d s are left, and 300 were noted", ttl)
		}
	}
	following := follow(t, etcd)
	expect.Must(etcd.Client().KeepAliveOnce(t.Context(), renewed))(t)
	granted := grant("granted")
	if ttl := left(etcd, renewed); ttl < 4000 {
		t.Fatalf("renewed, and %d s are left", ttl)
	}
	following.cutOver()
	want := map[clientv3.LeaseID]int64{renewed: left(etcd, renewed), quiet: left(etcd, quiet), granted: left(etcd, granted)}
	moved := following.serve()
	for id, key := range map[clientv3.LeaseID]string{renewed: "renewed", quiet: "quiet", granted: "granted"} {
		got := expect.Must(moved.Client().TimeToLive(t.Context(), id, clientv3.WithAttachedKeys()))(t)
		// It is asked for later than at the source.
		if got.TTL < want[id]-60 || got.GrantedTTL != 5000 {
			t.Errorf("%s: %d s of %d are left; %d at the source", key, got.TTL, got.GrantedTTL, want[id])
		}
		if len(got.Keys) != 1 || string(got.Keys[0]) != key {
			t.Errorf("%s: its keys are %q", key, got.Keys)
		}
	}
}

// TestKilledImportsLeaveNothingInTheWay kills imports at every point of their way; the next one is as good as the
// first, and nothing is left of any.
func TestKilledImportsLeaveNothingInTheWay(t *testing.T) {
	t.Parallel()
	subject := harness.CurrentSubject(t)
	if !subject.IsOurs() {
		t.Skip("leaseway's own command")
	}
	etcd := harness.StartSubject(t, harness.Etcd)
	fill(t, etcd.Client(), 32)
	want := stateOf(t, etcd.Client(), true)
	parent := t.TempDir()
	dir := filepath.Join(parent, "data")
	args := []string{"import", "--from-endpoint", etcd.URL(), "--data-dir", dir}
	if subject == harness.Gateway {
		args = append([]string{"import", "--from-endpoint", etcd.URL(), "--data-dir", parent}, subject.Flags(t, dir)...)
	}
	killed, done := 0, false
	for n := 0; n < 25 && !done; n++ {
		process := harness.StartProcess(t, "import", nil, harness.Leaseway.Binary(t), args...)
		time.Sleep(time.Duration(n) * 12 * time.Millisecond)
		process.Signal(syscall.SIGKILL)
		code, ended := process.Wait(30 * time.Second)
		// Killed after its last step, it has left everything.
		done = ended && code == 0 || strings.Contains(process.Output(), "not empty")
		if !done {
			killed++
		}
	}
	if killed == 0 {
		t.Fatal("none was killed in time")
	}
	if subject == harness.Leaseway && !done {
		if _, err := os.Stat(filepath.Join(dir, "keyspace.redb")); err != nil {
			// As if one had been killed between its last moves.
			expect.NoError(t, os.MkdirAll(filepath.Join(dir, "import.partial"), 0o700))
			expect.NoError(t, os.WriteFile(filepath.Join(dir, "log-0"), []byte("half"), 0o600))
			address := harness.FreeAddress(t)
			refused(t, "was begun and not finished", "--data-dir", dir,
				"--listen-client-urls=http://"+address, "--advertise-client-urls=http://"+address)
		}
	}
	if _, err := tool(t, harness.Leaseway.Binary(t), args...); err != nil && !strings.Contains(err.Error(), "not empty") {
		t.Fatal(err)
	}
	server := harness.StartOn(t, subject, dir)
	sameState(t, stateOf(t, server.Client(), true), want)
	for _, folder := range []string{parent, dir} {
		for _, entry := range expect.Must(os.ReadDir(folder))(t) {
			if name := entry.Name(); strings.Contains(name, "tmp") || strings.Contains(name, "partial") {
				t.Errorf("%s is left in %s", name, folder)
			}
		}
	}
}
