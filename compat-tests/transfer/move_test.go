package transfersuite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

// local is the subject with its data in a directory of its own.
func local(t *testing.T) harness.Subject {
	if harness.CurrentSubject(t).IsOurs() {
		return harness.Leaseway
	}
	return harness.Etcd
}

// TestMoveOut serves the subject's snapshot with a real etcd.
func TestMoveOut(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	client := server.Client()
	fill(t, client, 1)
	want := stateOf(t, client, true)
	snapshot := save(t, server)

	equal(t, "revision", statusOf(t, snapshot).Revision, must(client.Get(t.Context(), "k"))(t).Header.Revision)
	equal(t, "version", statusOf(t, snapshot).Version, "3.7.0")
	equal(t, "hash of the file", hashOf(t, snapshot), want.hash)

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

	subject := local(t)
	server := harness.StartOn(t, subject, restore(t, subject, snapshot))
	moved := server.Client()
	sameState(t, stateOf(t, moved, true), want)
	goesOn(t, server, moved)
	server.Restart()
	equal(t, "revision after a restart", must(moved.Get(t.Context(), "after"))(t).Count, int64(1))
}

// goesOn uses a server that was moved to: writes, leases, users, a compaction.
func goesOn(t *testing.T, server *harness.Server, client *clientv3.Client) {
	t.Helper()
	ctx := harness.Context(t, 30*time.Second)
	before := must(client.Get(ctx, "k"))(t).Header.Revision
	equal(t, "next revision", must(client.Put(ctx, "after", "v"))(t).Header.Revision, before+1)
	leases := must(client.Leases(ctx))(t).Leases
	equal(t, "leases", len(leases), 4)
	for _, lease := range leases {
		must(client.KeepAliveOnce(ctx, lease.ID))(t)
	}
	keys := must(client.TimeToLive(ctx, leases[0].ID, clientv3.WithAttachedKeys()))(t).Keys
	must(client.Revoke(ctx, leases[0].ID))(t)
	for _, key := range keys {
		equal(t, "keys with the lease", must(client.Get(ctx, string(key)))(t).Count, int64(0))
	}
	must(client.Compact(ctx, before, clientv3.WithCompactPhysical()))(t)

	root := enableAuth(t, server, client)
	must(root.Get(ctx, "key/", clientv3.WithPrefix()))(t)
	reader := server.ClientWith(clientv3.Config{Username: "reader", Password: "other"})
	must(reader.Get(ctx, "key/", clientv3.WithPrefix()))(t)
	if _, err := reader.Put(ctx, "key/1", "v"); err == nil {
		t.Fatal("a reader may write")
	}
	must(root.AuthDisable(ctx))(t)
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
	for _, subject := range []harness.Subject{harness.Etcd, local(t)} {
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
	subject := local(t)
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
	for _, subject := range []harness.Subject{harness.Etcd, local(t)} {
		to := harness.StartOn(t, subject, restore(t, subject, snapshot))
		sameState(t, stateOf(t, to.Client(), false), want)
		equal(t, "first revision", must(to.Client().Put(t.Context(), "k", "v"))(t).Header.Revision, int64(2))
	}
}

// TestCompactedToTheEnd moves a keyspace whose last revision is compacted and deleted.
func TestCompactedToTheEnd(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	client := server.Client()
	for _, key := range []string{"a", "b"} {
		must(client.Put(t.Context(), key, "v"))(t)
		must(client.Delete(t.Context(), key))(t)
	}
	must(client.Compact(t.Context(), 5, clientv3.WithCompactPhysical()))(t)
	want := stateOf(t, client, false)
	snapshot := save(t, server)
	for _, subject := range []harness.Subject{harness.Etcd, local(t)} {
		to := harness.StartOn(t, subject, restore(t, subject, snapshot))
		sameState(t, stateOf(t, to.Client(), false), want)
		equal(t, "next revision", must(to.Client().Put(t.Context(), "k", "v"))(t).Header.Revision, int64(6))
	}
}

// TestSnapshotWhileWriting takes snapshots under load: each is of one revision.
func TestSnapshotWhileWriting(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	client := server.Client()
	ctx := harness.Context(t, time.Minute)
	// etcdutl calls the revision of an empty keyspace 0, etcd 1.
	must(client.Txn(ctx).Then(clientv3.OpPut("one", "v"), clientv3.OpPut("two", "v")).Commit())(t)
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
		got := must(etcd.Client().Get(ctx, "", clientv3.WithPrefix()))(t)
		equal(t, "revision", got.Header.Revision, revision)
		equal(t, "keys", len(got.Kvs), 2)
		equal(t, "one", got.Kvs[0].ModRevision, revision)
		equal(t, "two", got.Kvs[1].ModRevision, revision)
		want := must(client.HashKV(ctx, server.Endpoint, revision))(t).Hash
		equal(t, "hash", must(etcd.Client().HashKV(ctx, etcd.Endpoint, revision))(t).Hash, want)
		etcd.Stop()
	}
	close(stop)
	noError(t, <-stopped)
	entries := must(os.ReadDir(server.DataDir))(t)
	for _, entry := range entries {
		if strings.Contains(entry.Name(), "tmp") {
			t.Fatalf("%s is left in the data directory", entry.Name())
		}
	}
	if _, err := os.Stat(filepath.Join(server.DataDir)); err != nil {
		t.Fatal(err)
	}
}
