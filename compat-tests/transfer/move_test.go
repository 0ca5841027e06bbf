package transfersuite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// TestMoveOut serves the subject's snapshot with a real etcd.
func TestMoveOut(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	client := server.Client()
	fill(t, client, 1)
	want := stateOf(t, client, true)
	snapshot := save(t, server)

	expect.Equal(t, "revision", statusOf(t, snapshot).Revision, expect.Must(client.Get(t.Context(), "k"))(t).Header.Revision)
	expect.Equal(t, "version", statusOf(t, snapshot).Version, "3.7.0")
	expect.Equal(t, "hash of the file", hashOf(t, snapshot), want.hash)

	etcd := harness.StartOn(t, harness.Etcd, restore(t, harness.Etcd, snapshot))
	moved := etcd.Client()
	sameState(t, stateOf(t, moved, true), want)
	goesOn(t, etcd, moved)
}

// TestMoveIn serves etcd's snapshot with the subject.
func TestMoveIn(t *testing.T) {
	t.Parallel()
	etcd := harness.StartSubject(t, harness.Etcd)
	client := etcd.Client()
	fill(t, client, 2)
	want := stateOf(t, client, true)
	snapshot := save(t, etcd)

	subject := harness.CurrentSubject(t)
	server := harness.StartOn(t, subject, restore(t, subject, snapshot))
	moved := server.Client()
	sameState(t, stateOf(t, moved, true), want)
	goesOn(t, server, moved)
	server.Restart()
	expect.Equal(t, "revision after a restart", expect.Must(moved.Get(t.Context(), "after"))(t).Count, int64(1))
}

// goesOn uses a server that was moved to: writes, leases, users, a compaction.
func goesOn(t *testing.T, server *harness.Server, client *clientv3.Client) {
	t.Helper()
	ctx := harness.Context(t, 30*time.Second)
	before := expect.Must(client.Get(ctx, "k"))(t).Header.Revision
	expect.Equal(t, "next revision", expect.Must(client.Put(ctx, "after", "v"))(t).Header.Revision, before+1)
	leases := expect.Must(client.Leases(ctx))(t).Leases
	expect.Equal(t, "leases", len(leases), 4)
	for _, lease := range leases {
		expect.Must(client.KeepAliveOnce(ctx, lease.ID))(t)
	}
	keys := expect.Must(client.TimeToLive(ctx, leases[0].ID, clientv3.WithAttachedKeys()))(t).Keys
	expect.Must(client.Revoke(ctx, leases[0].ID))(t)
	for _, key := range keys {
		expect.Equal(t, "keys with the lease", expect.Must(client.Get(ctx, string(key)))(t).Count, int64(0))
	}
	expect.Must(client.Compact(ctx, before, clientv3.WithCompactPhysical()))(t)

	root := enableAuth(t, server, client)
	expect.Must(root.Get(ctx, "key/", clientv3.WithPrefix()))(t)
	reader := server.ClientWith(clientv3.Config{Username: "reader", Password: "other"})
	expect.Must(reader.Get(ctx, "key/", clientv3.WithPrefix()))(t)
	if _, err := reader.Put(ctx, "key/1", "v"); err == nil {
		t.Fatal("a reader may write")
	}
	expect.Must(root.AuthDisable(ctx))(t)
}

// TestAuthMovesEnabled moves a keyspace with authentication on, in both directions.
func TestAuthMovesEnabled(t *testing.T) {
	t.Parallel()
	from := harness.Start(t)
	client := from.Client()
	fill(t, client, 3)
	root := enableAuth(t, from, client)
	want := stateOf(t, root, false)
	snapshot := save(t, from, "--user=root:secret")
	for _, subject := range []harness.Subject{harness.Etcd, harness.CurrentSubject(t)} {
		to := harness.StartOn(t, subject, restore(t, subject, snapshot))
		moved := to.ClientWith(clientv3.Config{Username: "root", Password: "secret"})
		sameState(t, stateOf(t, moved, false), want)
		if _, err := to.Client().Get(t.Context(), "key/1"); err == nil {
			t.Fatal("authentication is off")
		}
	}
}

// TestThereAndBack moves a keyspace through the real etcd and back.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	subject := harness.CurrentSubject(t)
	server := harness.StartSubject(t, subject)
	client := server.Client()
	fill(t, client, 4)
	want := stateOf(t, client, true)
	etcd := harness.StartOn(t, harness.Etcd, restore(t, harness.Etcd, save(t, server)))
	back := harness.StartOn(t, subject, restore(t, subject, save(t, etcd)))
	sameState(t, stateOf(t, back.Client(), true), want)
}

// TestSnapshotOfNothing moves an empty keyspace.
func TestSnapshotOfNothing(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	want := stateOf(t, server.Client(), false)
	snapshot := save(t, server)
	for _, subject := range []harness.Subject{harness.Etcd, harness.CurrentSubject(t)} {
		to := harness.StartOn(t, subject, restore(t, subject, snapshot))
		sameState(t, stateOf(t, to.Client(), false), want)
		expect.Equal(t, "first revision", expect.Must(to.Client().Put(t.Context(), "k", "v"))(t).Header.Revision, int64(2))
	}
}

// TestCompactedToTheEnd moves a keyspace whose last revision is compacted and deleted.
func TestCompactedToTheEnd(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	client := server.Client()
	for _, key := range []string{"a", "b"} {
		expect.Must(client.Put(t.Context(), key, "v"))(t)
		expect.Must(client.Delete(t.Context(), key))(t)
	}
	expect.Must(client.Compact(t.Context(), 5, clientv3.WithCompactPhysical()))(t)
	want := stateOf(t, client, false)
	snapshot := save(t, server)
	for _, subject := range []harness.Subject{harness.Etcd, harness.CurrentSubject(t)} {
		to := harness.StartOn(t, subject, restore(t, subject, snapshot))
		sameState(t, stateOf(t, to.Client(), false), want)
		expect.Equal(t, "next revision", expect.Must(to.Client().Put(t.Context(), "k", "v"))(t).Header.Revision, int64(6))
	}
}

// TestSnapshotWhileWriting takes snapshots under load: each is of one revision.
func TestSnapshotWhileWriting(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	client := server.Client()
	ctx := harness.Context(t, time.Minute)
	// etcdutl calls the revision of an empty keyspace 0, etcd 1.
	expect.Must(client.Txn(ctx).Then(clientv3.OpPut("one", "v"), clientv3.OpPut("two", "v")).Commit())(t)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			// Both or neither, at every revision.
			txn := client.Txn(ctx).Then(clientv3.OpPut("one", "v"), clientv3.OpPut("two", "v"))
			if _, err := txn.Commit(); err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 4 {
		snapshot := save(t, server)
		revision := statusOf(t, snapshot).Revision
		etcd := harness.StartOn(t, harness.Etcd, restore(t, harness.Etcd, snapshot))
		got := expect.Must(etcd.Client().Get(ctx, "", clientv3.WithPrefix()))(t)
		expect.Equal(t, "revision", got.Header.Revision, revision)
		expect.Equal(t, "keys", len(got.Kvs), 2)
		expect.Equal(t, "one", got.Kvs[0].ModRevision, revision)
		expect.Equal(t, "two", got.Kvs[1].ModRevision, revision)
		want := expect.Must(client.HashKV(ctx, server.Endpoint, revision))(t).Hash
		expect.Equal(t, "hash", expect.Must(etcd.Client().HashKV(ctx, etcd.Endpoint, revision))(t).Hash, want)
		etcd.Stop()
	}
	close(stop)
	expect.NoError(t, <-stopped)
	entries := expect.Must(os.ReadDir(server.DataDir))(t)
	for _, entry := range entries {
		if strings.Contains(entry.Name(), "tmp") {
			t.Fatalf("%s is left in the data directory", entry.Name())
		}
	}
}

// TestGatewaysBeginWithAnImport fills a keyspace that several gateways then serve, and refuses one that is
// not empty.
func TestGatewaysBeginWithAnImport(t *testing.T) {
	t.Parallel()
	if harness.CurrentSubject(t) != harness.Gateway {
		t.Skip("gateways only")
	}
	etcd := harness.StartSubject(t, harness.Etcd)
	client := etcd.Client()
	fill(t, client, 12)
	lease := expect.Must(client.Grant(t.Context(), 3))(t).ID
	expect.Must(client.Put(t.Context(), "short", "v", clientv3.WithLease(lease)))(t)
	snapshot := save(t, etcd)
	one := harness.StartOn(t, harness.Gateway, restore(t, harness.Gateway, snapshot))
	two := one.Another()
	// A lease that nobody renews ends.
	harness.Eventually(t, 40*time.Second, "the lease's end", func() error {
		if expect.Must(two.Client().Get(t.Context(), "short"))(t).Count != 0 {
			return errors.New("its key is there")
		}
		return nil
	})
	sameState(t, stateOf(t, two.Client(), true), stateOf(t, one.Client(), true))
	goesOn(t, one, two.Client())
	refused(t, "is not empty", append([]string{"import", snapshot}, harness.Gateway.Flags(t, one.DataDir)...)...)
}

// TestKilledImportLeavesEverythingOrNothing kills imports into keyspaces at various moments. Afterwards another
// import succeeds, or is refused because everything is there.
func TestKilledImportLeavesEverythingOrNothing(t *testing.T) {
	t.Parallel()
	if harness.CurrentSubject(t) != harness.Gateway {
		t.Skip("gateways only")
	}
	etcd := harness.StartSubject(t, harness.Etcd)
	client := etcd.Client()
	fill(t, client, 13)
	for n := range 100 {
		expect.Must(client.Put(t.Context(), fmt.Sprintf("large/%d", n), strings.Repeat("v", 100_000)))(t)
	}
	want := expect.Must(client.HashKV(t.Context(), etcd.Endpoint, 0))(t)
	snapshot := save(t, etcd)
	args := func(dir string) []string {
		return append([]string{"import", snapshot}, harness.Gateway.Flags(t, dir)...)
	}
	begun := time.Now()
	leaseway(t, args(t.TempDir())...)
	took := time.Since(begun)

	const kills = 5
	nothing := 0
	for n := range kills {
		dir := filepath.Join(t.TempDir(), "data")
		command := exec.Command(harness.Leaseway.Binary(t), args(dir)...)
		expect.NoError(t, command.Start())
		killed := time.AfterFunc(took*time.Duration(n+2)/(kills+2), func() { _ = command.Process.Kill() })
		_ = command.Wait()
		killed.Stop()
		if _, err := tool(t, harness.Leaseway.Binary(t), args(dir)...); err == nil {
			nothing++
		} else if !strings.Contains(err.Error(), "is not empty") {
			t.Fatal(err)
		}
		server := harness.StartOn(t, harness.Gateway, dir)
		got := expect.Must(server.Client().HashKV(t.Context(), server.Endpoint, 0))(t)
		expect.Equal(t, "revision", got.Header.Revision, want.Header.Revision)
		expect.Equal(t, "hash", got.Hash, want.Hash)
		server.Stop()
	}
	if nothing == 0 {
		t.Fatal("no import was killed before its end")
	}
	t.Logf("%d of %d left nothing", nothing, kills)
}
