package transfersuite

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// ours skips what is about Leaseway's own commands when etcd is tested.
func ours(t *testing.T) {
	t.Parallel()
	if harness.CurrentSubject(t) != harness.Leaseway {
		t.Skip("leaseway's own commands")
	}
}

// TestImportOfStoppedEtcd reads the data directory of an etcd that was stopped.
func TestImportOfStoppedEtcd(t *testing.T) {
	ours(t)
	etcd := harness.StartSubject(t, harness.Etcd)
	fill(t, etcd.Client(), 5)
	want := stateOf(t, etcd.Client(), true)
	dir := filepath.Join(t.TempDir(), "data")
	refused(t, "is in use", "import", etcd.DataDir, "--data-dir", dir)
	etcd.Stop()
	leaseway(t, "import", etcd.DataDir, "--data-dir", dir)
	server := harness.StartOn(t, harness.Leaseway, dir)
	sameState(t, stateOf(t, server.Client(), true), want)
}

// TestImportOfKilledEtcd refuses a database that etcd's log is ahead of.
func TestImportOfKilledEtcd(t *testing.T) {
	ours(t)
	// So that nothing is committed to the database before the end.
	etcd := harness.StartSubject(t, harness.Etcd, "--backend-batch-interval=1h", "--backend-batch-limit=1000000")
	client := etcd.Client()
	expect.Must(client.Put(t.Context(), "k", "v"))(t)
	etcd.Kill()
	dir := filepath.Join(t.TempDir(), "data")
	refused(t, "commands that are not in its database", "import", etcd.DataDir, "--data-dir", dir)
	if _, err := os.Stat(dir); err == nil {
		t.Fatal("a directory was made")
	}
	etcd.Resume()
	etcd.Stop()
	leaseway(t, "import", etcd.DataDir, "--data-dir", dir)
	server := harness.StartOn(t, harness.Leaseway, dir)
	expect.Equal(t, "key", expect.Must(server.Client().Get(t.Context(), "k"))(t).Count, int64(1))
}

// TestImportFromEndpoint reads from a running etcd.
func TestImportFromEndpoint(t *testing.T) {
	ours(t)
	etcd := harness.StartSubject(t, harness.Etcd)
	fill(t, etcd.Client(), 6)
	root := enableAuth(t, etcd, etcd.Client())
	want := stateOf(t, root, false)
	dir := filepath.Join(t.TempDir(), "data")
	refused(t, "user name is empty", "import", "--from-endpoint", etcd.URL(), "--data-dir", dir)
	leaseway(t, "import", "--from-endpoint", etcd.URL(), "--user", "root:secret", "--data-dir", dir)
	server := harness.StartOn(t, harness.Leaseway, dir)
	moved := server.ClientWith(clientv3.Config{Username: "root", Password: "secret"})
	sameState(t, stateOf(t, moved, false), want)
}

// TestTransferOverTLS reads from a server that demands certificates, with etcdctl's flags.
func TestTransferOverTLS(t *testing.T) {
	ours(t)
	authority := harness.NewAuthority(t)
	flags := append(authority.ServerFlags(), "--client-cert-auth", "--trusted-ca-file="+authority.File)
	pair := authority.Issue("root")
	for _, subject := range []harness.Subject{harness.Etcd, harness.Leaseway} {
		from := harness.StartSubject(t, subject, flags...)
		client := from.ClientWith(clientv3.Config{TLS: authority.Client(pair)})
		fill(t, client, 14)
		expect.Must(client.AuthEnable(t.Context()))(t)
		root := from.ClientWith(clientv3.Config{TLS: authority.Client(pair), Username: "root", Password: "secret"})
		want := stateOf(t, root, true)
		shown := []string{"--cert", pair.CertFile, "--key", pair.KeyFile}
		trusted := append([]string{"--cacert", authority.File}, shown...)

		// The certificate's name is a user's, so that no password is needed.
		for _, how := range [][]string{
			trusted,
			append([]string{"--insecure-skip-tls-verify"}, shown...),
			append([]string{"--user", "root:secret"}, trusted...),
			append([]string{"--user", "root", "--password", "secret"}, trusted...),
		} {
			dir := filepath.Join(t.TempDir(), "data")
			leaseway(t, append([]string{"import", "--from-endpoint", from.URL(), "--data-dir", dir}, how...)...)
			server := harness.StartOn(t, harness.Leaseway, dir)
			moved := server.ClientWith(clientv3.Config{Username: "root", Password: "secret"})
			sameState(t, stateOf(t, moved, true), want)
			server.Stop()
		}
		path := filepath.Join(t.TempDir(), "snapshot.db")
		leaseway(t, append([]string{"export", path, "--endpoint", from.URL()}, trusted...)...)
		expect.Equal(t, "hash", hashOf(t, path), want.hash)

		dir := filepath.Join(t.TempDir(), "data")
		try := func(words string, how ...string) {
			t.Helper()
			refused(t, words, append([]string{"import", "--data-dir", dir, "--from-endpoint"}, how...)...)
		}
		try("cannot connect", append([]string{from.URL()}, shown...)...)
		try("http://"+from.Endpoint, "http://"+from.Endpoint)
		try("give an https:// URL", append([]string{"http://" + from.Endpoint}, trusted...)...)
		try("belong together", from.URL(), "--cert", pair.CertFile)
		try("authentication failed", append([]string{from.URL(), "--user", "root:wrong"}, trusted...)...)
		from.Stop()
	}
}

// TestOwnDirectoriesAreRecognised says what to do with what is Leaseway's already.
func TestOwnDirectoriesAreRecognised(t *testing.T) {
	ours(t)
	server := harness.StartSubject(t, harness.Leaseway)
	expect.Must(server.Client().Put(t.Context(), "k", "v"))(t)
	server.Stop()
	dir := filepath.Join(t.TempDir(), "data")
	refused(t, "is a data directory of Leaseway already: start leaseway on it", "import", server.DataDir, "--data-dir", dir)
	refused(t, "run leaseway export", "import", filepath.Join(server.DataDir, "keyspace.redb"), "--data-dir", dir)
	// What it says leads to where one wanted to go.
	path := filepath.Join(t.TempDir(), "snapshot.db")
	leaseway(t, "export", path, "--data-dir", server.DataDir)
	leaseway(t, "import", path, "--data-dir", dir)
	moved := harness.StartOn(t, harness.Leaseway, dir)
	expect.Equal(t, "key", expect.Must(moved.Client().Get(t.Context(), "k"))(t).Count, int64(1))
}

// TestExportOfStoppedServer makes a snapshot of a data directory, for both versions of the format.
func TestExportOfStoppedServer(t *testing.T) {
	ours(t)
	server := harness.StartSubject(t, harness.Leaseway)
	fill(t, server.Client(), 7)
	want := stateOf(t, server.Client(), true)
	path := filepath.Join(t.TempDir(), "snapshot.db")
	refused(t, "is in use", "export", path, "--data-dir", server.DataDir)
	// Killed, so that the newest changes are in the log only.
	server.Kill()
	for _, version := range []string{"3.7.0", "3.6.0"} {
		path := filepath.Join(t.TempDir(), version+".db")
		leaseway(t, "export", path, "--data-dir", server.DataDir, "--storage-version", version)
		expect.Equal(t, "version", statusOf(t, path).Version, version)
		etcd := harness.StartOn(t, harness.Etcd, restore(t, harness.Etcd, path))
		sameState(t, stateOf(t, etcd.Client(), true), want)
		etcd.Stop()
	}
	refused(t, "is there already", "export", server.DataDir, "--data-dir", server.DataDir)
}

// TestExportOfRunningServer makes a snapshot of a server that goes on.
func TestExportOfRunningServer(t *testing.T) {
	ours(t)
	server := harness.StartSubject(t, harness.Leaseway)
	fill(t, server.Client(), 8)
	want := stateOf(t, server.Client(), true)
	path := filepath.Join(t.TempDir(), "snapshot.db")
	leaseway(t, "export", path, "--endpoint", server.URL())
	expect.Equal(t, "hash", hashOf(t, path), want.hash)
	dir := restore(t, harness.Leaseway, path)
	sameState(t, stateOf(t, harness.StartOn(t, harness.Leaseway, dir).Client(), true), want)
}

// TestRestoreMovesOn restores a backup: revisions go on far behind those that were seen, and what
// was before is compacted. The same is asked of etcdutl.
func TestRestoreMovesOn(t *testing.T) {
	ours(t)
	from := harness.StartSubject(t, harness.Leaseway)
	fill(t, from.Client(), 9)
	before := expect.Must(from.Client().Get(t.Context(), "key/", clientv3.WithPrefix()))(t)
	snapshot := save(t, from)
	for _, bump := range []string{"", "1000"} {
		ourDir := filepath.Join(t.TempDir(), "data")
		args := []string{"restore", snapshot, "--data-dir", ourDir}
		theirBump := "1000000000"
		if bump != "" {
			args, theirBump = append(args, "--bump-revision", bump, "--mark-compacted"), bump
		}
		leaseway(t, args...)
		theirDir := filepath.Join(t.TempDir(), "data")
		const peer = "http://127.0.0.1:2380"
		etcdutl(t, "snapshot", "restore", snapshot, "--data-dir", theirDir, "--name", "subject",
			"--initial-cluster", "subject="+peer, "--initial-advertise-peer-urls", peer,
			"--bump-revision", theirBump, "--mark-compacted")
		ours, theirs := harness.StartOn(t, harness.Leaseway, ourDir), harness.StartOn(t, harness.Etcd, theirDir)
		var revisions []int64
		for _, server := range []*harness.Server{ours, theirs} {
			client := server.Client()
			got := expect.Must(client.Get(t.Context(), "key/", clientv3.WithPrefix()))(t)
			expect.Equal(t, "keys", got.Count, before.Count)
			for n, kv := range got.Kvs {
				if !proto.Equal(kv, before.Kvs[n]) {
					t.Fatalf("got %v, want %v", kv, before.Kvs[n])
				}
			}
			watch := <-client.Watch(t.Context(), "key/", clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision))
			expect.Equal(t, "compacted", watch.CompactRevision, got.Header.Revision)
			revisions = append(revisions, got.Header.Revision, expect.Must(client.Put(t.Context(), "a", "b"))(t).Header.Revision)
		}
		expect.Equal(t, "revision", revisions[0], revisions[2])
		expect.Equal(t, "next revision", revisions[1], revisions[3])
		ours.Stop()
		theirs.Stop()
	}
	plain := filepath.Join(t.TempDir(), "data")
	leaseway(t, "restore", snapshot, "--data-dir", plain, "--bump-revision=0")
	server := harness.StartOn(t, harness.Leaseway, plain)
	expect.Equal(t, "revision", expect.Must(server.Client().Get(t.Context(), "k"))(t).Header.Revision, before.Header.Revision)
}

// TestDamagedSnapshotsAreRefused imports files that were cut or changed.
func TestDamagedSnapshotsAreRefused(t *testing.T) {
	ours(t)
	etcd := harness.StartSubject(t, harness.Etcd)
	fill(t, etcd.Client(), 10)
	whole := expect.Must(os.ReadFile(save(t, etcd)))(t)
	dir := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(t.TempDir(), "snapshot.db")
	try := func(words string, content []byte, flags ...string) {
		t.Helper()
		expect.NoError(t, os.WriteFile(path, content, 0o600))
		refused(t, words, append([]string{"import", path, "--data-dir", dir}, flags...)...)
		for _, name := range []string{"keyspace.redb", "import.partial"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				t.Fatalf("%s is left", name)
			}
		}
	}
	changed := func(at int) []byte {
		content := append([]byte{}, whole...)
		content[at] ^= 0x40
		return content
	}
	try("has no checksum", whole[:len(whole)-1])
	try("has no checksum", whole[:len(whole)/4096*4096])
	try("does not fit the checksum", changed(len(whole)/2))
	try("does not fit the checksum", changed(len(whole)-1))
	try("is truncated", whole[:len(whole)/2], "--skip-hash-check")
	try("no database file of etcd", whole[:50], "--skip-hash-check")
	try("no database file of etcd", []byte("something else"), "--skip-hash-check")
	expect.NoError(t, os.WriteFile(path, whole, 0o600))
	leaseway(t, "import", path, "--data-dir", dir)
	refused(t, "is not empty", "import", path, "--data-dir", dir)
	refused(t, "holds the data of an etcd member", "import", path, "--data-dir", etcd.DataDir)
}

// TestKilledImportIsNoStore kills an import: the server does not take what is left for a keyspace.
func TestKilledImportIsNoStore(t *testing.T) {
	ours(t)
	dir := t.TempDir()
	expect.NoError(t, os.Mkdir(filepath.Join(dir, "import.partial"), 0o700))
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "import.partial", "keyspace.redb"), []byte("half"), 0o600))
	address := harness.FreeAddress(t)
	refused(t, "was begun and not finished", "--data-dir", dir,
		"--listen-client-urls=http://"+address, "--advertise-client-urls=http://"+address)
	from := harness.StartSubject(t, harness.Leaseway)
	expect.Must(from.Client().Put(t.Context(), "k", "v"))(t)
	leaseway(t, "import", save(t, from), "--data-dir", dir)
	server := harness.StartOn(t, harness.Leaseway, dir)
	expect.Equal(t, "key", expect.Must(server.Client().Get(t.Context(), "k"))(t).Count, int64(1))
}

// TestFilesOfBbolt reads files that bbolt wrote with other settings and another history than etcd's:
// page sizes of other machines, a free list that is written, many deletions, long keys.
func TestFilesOfBbolt(t *testing.T) {
	ours(t)
	for _, options := range []bolt.Options{
		{PageSize: 1024},
		{PageSize: 4096, NoFreelistSync: true},
		{PageSize: 16384, FreelistType: bolt.FreelistMapType},
		{PageSize: 65536},
	} {
		path := filepath.Join(t.TempDir(), "db")
		writeWithBbolt(t, path, options)
		content := expect.Must(os.ReadFile(path))(t)
		sum := sha256.Sum256(content)
		expect.NoError(t, os.WriteFile(path, append(content, sum[:]...), 0o600))
		server := harness.StartOn(t, harness.Leaseway, restore(t, harness.Leaseway, path))
		got := expect.Must(server.Client().Get(t.Context(), "k", clientv3.WithPrefix()))(t)
		expect.Equal(t, "keys", got.Count, int64(1000))
		expect.Equal(t, "revision", got.Header.Revision, int64(3001))
		expect.Equal(t, "hash", expect.Must(server.Client().HashKV(t.Context(), server.Endpoint, 0))(t).Hash, hashOf(t, path))
		server.Stop()
	}
}

// writeWithBbolt puts a thousand keys, three times each, in many transactions, the first times deleted again.
func writeWithBbolt(t *testing.T, path string, options bolt.Options) {
	t.Helper()
	options.Timeout, options.NoSync = time.Second, true
	db := expect.Must(bolt.Open(path, 0o600, &options))(t)
	defer db.Close()
	rowKey := func(revision int) []byte {
		key := make([]byte, 17)
		binary.BigEndian.PutUint64(key, uint64(revision))
		key[8] = '_'
		return key
	}
	for first := 2; first < 3002; first += 100 {
		expect.NoError(t, db.Update(func(tx *bolt.Tx) error {
			rows := expect.Must(tx.CreateBucketIfNotExists([]byte("key")))(t)
			meta := expect.Must(tx.CreateBucketIfNotExists([]byte("meta")))(t)
			expect.Must(tx.CreateBucketIfNotExists([]byte("lease")))(t)
			for revision := first; revision < first+100; revision++ {
				value := expect.Must(proto.MarshalOptions{Deterministic: true}.Marshal(&mvccpb.KeyValue{
					Key: []byte{'k', byte(revision % 1000 / 256), byte(revision % 1000)}, Value: make([]byte, revision%5000),
					CreateRevision: int64(revision), ModRevision: int64(revision), Version: 1,
				}))(t)
				expect.NoError(t, rows.Put(rowKey(revision), value))
				if revision > 1002 && revision < 2002 {
					expect.NoError(t, rows.Delete(rowKey(revision-1000)))
				}
			}
			expect.NoError(t, meta.Put([]byte("storageVersion"), []byte("3.7.0")))
			return meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, uint64(first)))
		}))
	}
}
