package clientsuite

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// The server as a process: signals, flags, environment, listeners, HTTP.

func TestDataSurvivesRestarts(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1", "a=2")
	expect.Must(client.Delete(ctx, "b"))(t)
	for _, stop := range []func(){server.Stop, server.Kill} {
		stop()
		server.Resume()
		client = server.Client()
		got := expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t)
		expect.Equal(t, "revision", got.Header.Revision, 5)
		expect.Equal(t, "keys", versions(got.Kvs), "a c2 m4 v2")
		expect.Equal(t, "history", pairs(expect.Must(client.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(3)))(t).Kvs), "a=1 b=1")
		wantEvents(t, client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1)),
			"PUT a=1 @2", "PUT b=1 @3", "PUT a=2 @4", "DELETE b @5")
	}
}

func TestAcknowledgedWritesSurviveKill(t *testing.T) {
	server, _, ctx := start(t)
	acknowledged := map[string]string{}
	var last int64
	for round := range 3 {
		client := server.Client()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				key, value := fmt.Sprintf("k%d", i%20), fmt.Sprintf("%d/%d", round, i)
				bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
				answer, err := client.Put(bounded, key, value)
				cancel()
				if err != nil {
					return
				}
				acknowledged[key], last = value, answer.Header.Revision
				if i == 150 {
					go server.Kill()
				}
			}
		}()
		<-done
		server.Kill() // reaped before its port and data are used again
		server.Resume()
		got := expect.Must(server.Client().Get(ctx, "k", clientv3.WithPrefix()))(t)
		expect.Equal(t, "revision does not go back", got.Header.Revision >= last, true)
		// The write that was under way when the server died may be there or not.
		lost := 0
		for _, kv := range got.Kvs {
			if kv.ModRevision <= last && acknowledged[string(kv.Key)] != string(kv.Value) {
				lost++
			}
		}
		expect.Equal(t, "lost writes", lost, 0)
		expect.Equal(t, "keys", len(got.Kvs), 20)
		last = got.Header.Revision
	}
}

func TestCompactionSurvivesRestart(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "a=2", "a=3")
	expect.Must(client.Compact(ctx, 3))(t)
	server.Kill()
	server.Resume()
	client = server.Client()
	_, err := client.Get(ctx, "a", clientv3.WithRev(2))
	expect.Equal(t, "compacted", err != nil && err.Error() == compactedText, true)
	expect.Equal(t, "kept", pairs(expect.Must(client.Get(ctx, "a", clientv3.WithRev(3)))(t).Kvs), "a=2")
	response := nextResponse(t, client.Watch(ctx, "a", clientv3.WithRev(2)))
	expect.Equal(t, "watch", response.CompactRevision, 3)
}

func TestVersionFlag(t *testing.T) {
	subject := harness.CurrentSubject(t)
	process := harness.StartProcess(t, "version", nil, subject.Binary(t), "--version")
	code, ended := process.Wait(callDeadline)
	expect.Equal(t, "ended", ended, true)
	expect.Equal(t, "exit code", code, 0)
	expect.Equal(t, "first line", strings.SplitN(process.Output(), "\n", 2)[0], "etcd Version: "+harness.EtcdVersion)
}

func TestBadFlagsAreRefused(t *testing.T) {
	subject := harness.CurrentSubject(t)
	for _, flags := range [][]string{
		{"--no-such-flag"},
		{"--listen-client-urls=nonsense"},
		{"--quota-backend-bytes=many"},
	} {
		flags = append(flags, "--data-dir="+filepath.Join(t.TempDir(), "data"))
		process := harness.StartProcess(t, "refused", nil, subject.Binary(t), flags...)
		code, ended := process.Wait(callDeadline)
		expect.Equal(t, fmt.Sprintf("%s ended", flags[0]), ended, true)
		expect.Equal(t, fmt.Sprintf("%s exit code %d", flags[0], code), code == 1 || code == 2, true)
	}
}

func TestTerminationIsQuick(t *testing.T) {
	server, client, ctx := start(t)
	// Open streams and a held watch must not keep the server from leaving.
	watch := client.Watch(ctx, "k", clientv3.WithRev(1))
	putAll(t, ctx, client, "k=1")
	wantEvents(t, watch, "PUT k=1 @2")
	lease := expect.Must(client.Grant(ctx, 100))(t).ID
	expect.Must(client.KeepAlive(ctx, lease))(t)
	limit := 5 * time.Second
	if server.Subject() == harness.Etcd {
		limit = 10 * time.Second // it waits 7 s for open streams
	}
	began := time.Now()
	server.Stop()
	expect.Equal(t, fmt.Sprintf("in time (%v)", time.Since(began)), time.Since(began) < limit, true)
}

func TestSettingsFromTheEnvironment(t *testing.T) {
	t.Parallel()
	subject := harness.CurrentSubject(t)
	address, peer := harness.FreeAddress(t), harness.FreeAddress(t)
	process := harness.StartProcess(t, "by environment", []string{
		"ETCD_NAME=by-environment",
		"ETCD_DATA_DIR=" + filepath.Join(t.TempDir(), "data"),
		"ETCD_LISTEN_CLIENT_URLS=http://" + address,
		"ETCD_ADVERTISE_CLIENT_URLS=http://" + address,
		"ETCD_LISTEN_PEER_URLS=http://" + peer,
		"ETCD_INITIAL_ADVERTISE_PEER_URLS=http://" + peer,
		"ETCD_INITIAL_CLUSTER=by-environment=http://" + peer,
		"ETCD_MAX_TXN_OPS=3",
	}, subject.Binary(t))
	expect.NoError(t, process.AwaitOutput(harness.ReadyText, callDeadline))
	client := dial(t, address)
	ctx := harness.Context(t, callDeadline)
	expect.Equal(t, "name", expect.Must(client.MemberList(ctx))(t).Members[0].Name, "by-environment")
	_, err := client.Txn(ctx).Then(gets(4)...).Commit()
	expect.Equal(t, "limit from the environment", err != nil, true)
	expect.Must(client.Txn(ctx).Then(gets(3)...).Commit())(t)
}

func TestFlagAndEnvironmentContradict(t *testing.T) {
	subject := harness.CurrentSubject(t)
	process := harness.StartProcess(t, "contradiction", []string{"ETCD_NAME=one"},
		subject.Binary(t), "--name=two", "--data-dir="+filepath.Join(t.TempDir(), "data"))
	code, ended := process.Wait(callDeadline)
	expect.Equal(t, "ended", ended, true)
	expect.Equal(t, fmt.Sprintf("exit code %d", code), code == 1 || code == 2, true)
	expect.Equal(t, "names the variable", strings.Contains(process.Output(), "ETCD_NAME"), true)
}

func TestSeveralListeners(t *testing.T) {
	t.Parallel()
	subject := harness.CurrentSubject(t)
	dir := t.TempDir()
	first, second, peer := harness.FreeAddress(t), harness.FreeAddress(t), harness.FreeAddress(t)
	socket := filepath.Join(dir, "s")
	process := harness.StartProcess(t, "several listeners", nil, subject.Binary(t),
		"--name=subject", "--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", "http://"+first+",http://"+second+",unix://"+socket,
		"--advertise-client-urls", "http://"+first,
		"--listen-peer-urls", "http://"+peer,
		"--initial-advertise-peer-urls", "http://"+peer,
		"--initial-cluster", "subject=http://"+peer)
	expect.NoError(t, process.AwaitOutput(harness.ReadyText, callDeadline))
	ctx := harness.Context(t, callDeadline)
	for i, endpoint := range []string{first, second, "unix://" + socket} {
		client := dial(t, endpoint)
		expect.Equal(t, endpoint, putAll(t, ctx, client, "k=v"), int64(2+i))
	}
}

func dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	client := expect.Must(clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestHTTPOnTheClientPort(t *testing.T) {
	metricsAddress := harness.FreeAddress(t)
	server, client, ctx := start(t, "--listen-metrics-urls=http://"+metricsAddress)
	putAll(t, ctx, client, "k=1")
	get := func(url string) (int, string) {
		t.Helper()
		response := expect.Must(http.Get(url))(t)
		defer response.Body.Close()
		return response.StatusCode, string(expect.Must(io.ReadAll(response.Body))(t))
	}
	for path, want := range map[string]string{
		"/health":                   `{"health":"true","reason":""}`,
		"/health?serializable=true": `{"health":"true","reason":""}`,
		"/livez":                    "ok",
		"/readyz":                   "ok",
	} {
		code, body := get(server.URL() + path)
		expect.Equal(t, path, fmt.Sprintf("%d %s", code, strings.TrimSpace(body)), "200 "+want)
	}
	_, body := get(server.URL() + "/version")
	var version map[string]string
	expect.NoError(t, json.Unmarshal([]byte(body), &version))
	expect.Equal(t, "version", fmt.Sprint(version), fmt.Sprint(map[string]string{"etcdserver": harness.EtcdVersion, "etcdcluster": "3.7.0", "storage": "3.7.0"}))
	for _, base := range []string{server.URL(), "http://" + metricsAddress} {
		code, metrics := get(base + "/metrics")
		expect.Equal(t, "metrics", code, 200)
		for _, name := range []string{"etcd_server_has_leader 1", "etcd_mvcc_db_total_size_in_bytes", "process_resident_memory_bytes"} {
			expect.Equal(t, base+" has "+name, strings.Contains(metrics, name), true)
		}
	}
	code, _ := get("http://" + metricsAddress + "/health")
	expect.Equal(t, "health on the metrics port", code, 200)
	code, _ = get(server.URL() + "/no/such/path")
	expect.Equal(t, "unknown path", code, 404)
}
