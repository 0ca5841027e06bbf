package pagesuite

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"leaseway/compat-tests/harness"
)

func grant(t *testing.T, client *clientv3.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	granted, err := client.Grant(harness.Context(t, patience), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return granted.ID
}

// row is the row of a table whose first cell has a text; "" if there is none.
func (p *tab) row(first string) string {
	p.t.Helper()
	var text string
	p.eval(fmt.Sprintf(`[...document.querySelectorAll("%s")].find((e) => e.cells[0].innerText === %s)?.innerText ?? ""`, rows, quote(first)), &text)
	return text
}

// TestLeases: with the time that they have left, which passes, and their keys.
func TestLeases(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	long, short := grant(t, client, 3600), grant(t, client, 50)
	put(t, client, "dir/one", "v", clientv3.WithLease(long))
	put(t, client, "dir/two", "v", clientv3.WithLease(long))
	id := func(lease clientv3.LeaseID) string { return strconv.FormatInt(int64(lease), 16) }

	p := open(t, server.URL(), "#leases")
	p.shows(rows, id(long))
	p.shows(rows, id(short))
	p.holds("what ends first is first", fmt.Sprintf(`document.querySelector("%s").cells[0].innerText === %s`, rows, quote(id(short))))
	p.shows(rows, "59 min")
	if row := p.row(id(long)); !strings.Contains(row, "dir/one") || !strings.Contains(row, "dir/two") {
		t.Errorf("the row is %q", row)
	}
	seconds := func() int {
		found := regexp.MustCompile(`(\d+) s`).FindStringSubmatch(p.row(id(short)))
		if found == nil {
			t.Fatalf("no time in %q", p.row(id(short)))
		}
		left, _ := strconv.Atoi(found[1])
		return left
	}
	first := seconds()
	if first < 20 || first > 50 {
		t.Errorf("%d s are left of 50", first)
	}
	// Every second of it is seen, not only every other one.
	for want := first - 1; want >= first-4; want-- {
		harness.Eventually(t, patience, "time passes", func() error {
			if left := seconds(); left > want {
				return fmt.Errorf("%d s are left", left)
			}
			return nil
		})
	}
	p.shot("leases")

	brief := grant(t, client, 3)
	put(t, client, "brief", "v", clientv3.WithLease(brief))
	p.shows(rows, id(brief))
	p.hides(rows, id(brief))
	if _, err := client.Revoke(harness.Context(t, patience), short); err != nil {
		t.Fatal(err)
	}
	p.hides(rows, id(short))

	p.click(rows+" a", "dir/two")
	p.shows(".detail", "dir/two")
	p.shows(names, "one")
	p.click(".detail a", id(long))
	p.eventually("it leads to the lease", fmt.Sprintf(`document.querySelector("tr.chosen")?.cells[0].innerText === %s`, quote(id(long))))
	if _, err := client.Revoke(harness.Context(t, patience), long); err != nil {
		t.Fatal(err)
	}
	p.shows("#view", "There are no leases.")
}

// neverReceive watches everything from the first revision, and takes no answer.
func neverReceive(t *testing.T, endpoint string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); connection.Close() })
	stream, err := pb.NewWatchClient(connection).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := &pb.WatchCreateRequest{Key: []byte("load/"), RangeEnd: []byte("load0"), StartRevision: 1}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		t.Fatal(err)
	}
}

// TestWatchers: what they watch, and how far behind they are.
func TestWatchers(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	p := open(t, server.URL(), "#watchers")
	p.shows("#view", "Nobody watches here.")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client.Watch(ctx, "single")
	client.Watch(ctx, "prefix/", clientv3.WithPrefix())
	client.Watch(ctx, "", clientv3.WithPrefix())
	client.Watch(ctx, "from", clientv3.WithFromKey())
	client.Watch(ctx, "a", clientv3.WithRange("c"), clientv3.WithRev(1000))
	for _, text := range []string{"single", "prefix/*", "all keys", "from and all behind", "a up to c", "starts in "} {
		p.shows(rows, text)
	}
	p.shows(rows, "live")

	neverReceive(t, server.Endpoint)
	p.shows(rows, "load/*")
	large := strings.Repeat("x", 64<<10)
	for number := range 60 {
		put(t, client, fmt.Sprintf("load/%d", number), large)
	}
	p.eventually("who takes nothing is behind, and first", fmt.Sprintf(`(() => {
		const cells = document.querySelector("%s").cells;
		return cells[0].innerText === "load/*" && cells[1].innerText !== "live" && Number(cells[2].innerText) > 0; })()`, rows))
	p.shows("#figures", "1 behind")
	p.shot("watchers")
	p.click(rows+" a", "prefix/*")
	p.shows("#view", "No key begins with this.")
	p.click("nav a", "Watchers")
	cancel()
	p.hides(rows, "single")
	p.hides(rows, "all keys")
}

// TestMembers: all gateways and how far each has applied the log.
func TestMembers(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	put(t, client, "k", "v")
	p := open(t, server.URL(), "#members")
	p.shows(rows, "this one")
	p.shows(rows, server.URL())
	count := func(want int) string {
		return fmt.Sprintf(`document.querySelectorAll("%s").length === %d`, rows, want)
	}
	p.eventually("itself", count(1))
	if server.Subject() != harness.Gateway {
		p.shows("#place", "a single server")
		p.shot("members")
		return
	}
	p.shows("#place", "a gateway on Oxia")
	other := server.Another()
	p.eventually("both", count(2))
	p.shows(rows, other.URL())
	q := open(t, other.URL(), "#members")
	q.eventually("both, at the other", count(2))
	for number := range 20 {
		put(t, client, fmt.Sprint("k", number), "v")
	}
	for _, each := range []*tab{p, q} {
		each.eventually("both have come to the same position", fmt.Sprintf(`(() => {
			const rows = [...document.querySelectorAll("%s")].map((row) => [...row.cells].map((cell) => cell.innerText));
			const [mine, others] = rows;
			return rows.length === 2 && mine[4] === others[4] && others[5] === "0" && Number(mine[4]) > 20; })()`, rows))
	}
	p.shot("members")

	// What is written at one is seen at the other, and leases are everybody's.
	q.eval(`location.hash = "#keys"`, nil)
	put(t, client, "written/at/one", "v")
	q.shows(names, "written/")
	lease := grant(t, client, 1000)
	q.eval(`location.hash = "#leases"`, nil)
	q.shows(rows, strconv.FormatInt(int64(lease), 16))
	q.shows("th", "Left, at most")
	q.tolerate("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_CLOSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
	other.Kill()
	p.eventually("who was killed goes", count(1))
}

// TestFigures: those above the views.
func TestFigures(t *testing.T) {
	t.Parallel()
	server := ours(t, "--quota-backend-bytes=20000000")
	client := server.Client()
	p := open(t, server.URL(), "")
	figure := func(title, value string) {
		t.Helper()
		p.eventually(title+" is "+value, fmt.Sprintf(
			`[...document.querySelectorAll("#figures > div")].find((e) => e.querySelector("dt").innerText === %s)?.querySelector("dd").innerText.startsWith(%s)`,
			quote(title), quote(value)))
	}
	figure("Revision", "1\nnothing compacted")
	put(t, client, "a", "v")
	put(t, client, "b", "v")
	put(t, client, "a", "v")
	figure("Revision", "4\n")
	figure("Keys", "2\n3 puts so far")
	grant(t, client, 1000)
	figure("Leases", "1")
	ctx := harness.Context(t, patience)
	if _, err := client.Compact(ctx, 3); err != nil {
		t.Fatal(err)
	}
	figure("Revision", "4\ncompacted to 3")
	p.shows("#figures", "of 19.1 MiB")
	p.hides("#alarms", "Alarm")
	// Over the quota: an alarm that everybody sees.
	for number := 0; ; number++ {
		_, err := client.Put(ctx, fmt.Sprint("large", number), strings.Repeat("x", 1<<20))
		if err != nil && strings.Contains(err.Error(), "database space exceeded") {
			break
		}
		if err != nil || number == 40 {
			t.Fatalf("put %d: %v", number, err)
		}
	}
	p.shows("#alarms", "Alarm NOSPACE")
	p.shot("alarm")
	alarms, err := client.AlarmList(ctx)
	if err != nil || len(alarms.Alarms) == 0 {
		t.Fatalf("%v %v", alarms, err)
	}
	for _, alarm := range alarms.Alarms {
		if _, err := client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			t.Fatal(err)
		}
	}
	p.hides("#alarms", "Alarm")
}
