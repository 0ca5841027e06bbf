package clientsuite

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func TestStatus(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "k=1")
	var got *clientv3.StatusResponse
	// A new etcd raises its storage version some time after it serves.
	harness.Eventually(t, 10*time.Second, "storage version 3.7.0", func() error {
		got = expect.Must(client.Status(ctx, server.Endpoint))(t)
		if got.StorageVersion != "3.7.0" {
			return fmt.Errorf("it is %s", got.StorageVersion)
		}
		return nil
	})
	expect.Equal(t, "version", got.Version, harness.EtcdVersion)
	expect.Equal(t, "revision", got.Header.Revision, 2)
	expect.Equal(t, "leads itself", got.Leader, got.Header.MemberId)
	expect.Equal(t, "member id", got.Header.MemberId != 0, true)
	expect.Equal(t, "cluster id", got.Header.ClusterId != 0, true)
	expect.Equal(t, "raft term", got.RaftTerm > 0 && got.RaftTerm == got.Header.RaftTerm, true)
	expect.Equal(t, "raft index", got.RaftIndex > 0 && got.RaftAppliedIndex > 0 && got.RaftAppliedIndex <= got.RaftIndex, true)
	expect.Equal(t, "size", got.DbSize > 0 && got.DbSizeInUse > 0 && got.DbSizeInUse <= got.DbSize, true)
	expect.Equal(t, "quota", got.DbSizeQuota, 2<<30)
	expect.Equal(t, "learner", got.IsLearner, false)
	expect.Equal(t, "errors", len(got.Errors), 0)
	expect.Equal(t, "downgrade info", got.DowngradeInfo != nil && !got.DowngradeInfo.Enabled, true)
	// The identity stays the same from answer to answer and over a restart.
	server.Restart()
	again := expect.Must(server.Client().Status(ctx, server.Endpoint))(t)
	expect.Equal(t, "same member", again.Header.MemberId, got.Header.MemberId)
	expect.Equal(t, "same cluster", again.Header.ClusterId, got.Header.ClusterId)
}

func TestHashKV(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1", "b=1", "a=2")
	head := expect.Must(client.HashKV(ctx, server.Endpoint, 0))(t)
	expect.Equal(t, "hash revision", head.HashRevision, 4)
	expect.Equal(t, "header revision", head.Header.Revision, 4)
	expect.Equal(t, "nothing is compacted yet", head.CompactRevision, -1)
	expect.Equal(t, "same state, same hash", expect.Must(client.HashKV(ctx, server.Endpoint, 4))(t).Hash, head.Hash)
	past := expect.Must(client.HashKV(ctx, server.Endpoint, 3))(t)
	expect.Equal(t, "other state, other hash", past.Hash != head.Hash, true)
	putAll(t, ctx, client, "c=1")
	expect.Equal(t, "the past does not change", expect.Must(client.HashKV(ctx, server.Endpoint, 3))(t).Hash, past.Hash)
	_, err := client.HashKV(ctx, server.Endpoint, 99)
	wantStatus(t, err, codes.OutOfRange, futureText)
	expect.Must(client.Compact(ctx, 3, clientv3.WithCompactPhysical()))(t)
	_, err = client.HashKV(ctx, server.Endpoint, 2)
	wantStatus(t, err, codes.OutOfRange, compactedText)
	compacted := expect.Must(client.HashKV(ctx, server.Endpoint, 0))(t)
	expect.Equal(t, "compact revision", compacted.CompactRevision, 3)
	server.Restart()
	reopened := expect.Must(server.Client().HashKV(ctx, server.Endpoint, 0))(t)
	expect.Equal(t, "a restart does not change it", fmt.Sprint(reopened.Hash, reopened.CompactRevision, reopened.HashRevision),
		fmt.Sprint(compacted.Hash, compacted.CompactRevision, compacted.HashRevision))
}

func TestHashOfTheWholeStore(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	hash := expect.Must(pb.NewMaintenanceClient(client.ActiveConnection()).Hash(ctx, &pb.HashRequest{}))(t)
	expect.Equal(t, "hash", hash.Hash != 0, true)
	expect.Equal(t, "revision", hash.Header.Revision, 2)
}

func TestDefragment(t *testing.T) {
	server, client, ctx := start(t)
	value := strings.Repeat("x", 64<<10)
	for i := range 200 {
		expect.Must(client.Put(ctx, fmt.Sprintf("k%d", i%5), value))(t)
	}
	expect.Must(client.Compact(ctx, 201, clientv3.WithCompactPhysical()))(t)
	before := expect.Must(client.Status(ctx, server.Endpoint))(t)
	expect.Must(client.Defragment(ctx, server.Endpoint))(t)
	after := expect.Must(client.Status(ctx, server.Endpoint))(t)
	expect.Equal(t, fmt.Sprintf("smaller (%d -> %d)", before.DbSize, after.DbSize), after.DbSize < before.DbSize, true)
	expect.Equal(t, "keys", expect.Must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 5)
	expect.Equal(t, "revision", after.Header.Revision, 201)
}

func TestAlarmsAndQuota(t *testing.T) {
	server, client, ctx := start(t)
	maintenance := pb.NewMaintenanceClient(client.ActiveConnection())
	lease := expect.Must(client.Grant(ctx, 100))(t).ID
	putAll(t, ctx, client, "a=1", "b=1")
	expect.Equal(t, "alarms", len(expect.Must(client.AlarmList(ctx))(t).Alarms), 0)
	member := expect.Must(client.Status(ctx, server.Endpoint))(t).Header.MemberId
	raise := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: pb.AlarmType_NOSPACE}
	for range 2 { // raising twice is as good as once
		expect.Equal(t, "raised", len(expect.Must(maintenance.Alarm(ctx, raise))(t).Alarms), 1)
	}
	errorTexts := expect.Must(client.Status(ctx, server.Endpoint))(t).Errors
	expect.Equal(t, "errors in the status", len(errorTexts), 1)
	// Go's protobuf library varies the white space of this text from build to build.
	expect.Equal(t, "status", strings.Join(strings.Fields(errorTexts[0]), " "), fmt.Sprintf("memberID:%d alarm:NOSPACE", member))

	const noSpace = "etcdserver: mvcc: database space exceeded"
	_, err := client.Put(ctx, "a", "2")
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Txn(ctx).Then(clientv3.OpPut("a", "2")).Commit()
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Txn(ctx).Then(clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("a", "2")})).Commit()
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	_, err = client.Grant(ctx, 100)
	wantStatus(t, err, codes.ResourceExhausted, noSpace)
	expect.Equal(t, "reads go on", expect.Must(client.Get(ctx, "a"))(t).Count, 1)
	expect.Must(client.KeepAliveOnce(ctx, lease))(t)
	expect.Must(client.Txn(ctx).Then(clientv3.OpGet("a"), clientv3.OpDelete("b")).Commit())(t)
	expect.Equal(t, "deletions go on", expect.Must(client.Delete(ctx, "a"))(t).Deleted, 1)

	disarmed := expect.Must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: member, Alarm: pb.AlarmType_NOSPACE}))(t)
	expect.Equal(t, "disarmed", len(disarmed.Alarms), 1)
	disarmed = expect.Must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: member, Alarm: pb.AlarmType_NOSPACE}))(t)
	expect.Equal(t, "disarmed again", len(disarmed.Alarms), 0)
	putAll(t, ctx, client, "a=3")
}

// TestUnknownAlarms covers alarms of which nobody knows what they mean. (An action that is not known ends etcd.)
func TestUnknownAlarms(t *testing.T) {
	server, client, ctx := start(t)
	maintenance := pb.NewMaintenanceClient(client.ActiveConnection())
	member := expect.Must(client.Status(ctx, server.Endpoint))(t).Header.MemberId
	alarms := func(action pb.AlarmRequest_AlarmAction, alarm pb.AlarmType, member uint64) string {
		t.Helper()
		answer := expect.Must(maintenance.Alarm(ctx, &pb.AlarmRequest{Action: action, Alarm: alarm, MemberID: member}))(t)
		told := ""
		for _, alarm := range answer.Alarms {
			told += fmt.Sprintf("%d of %d ", alarm.Alarm, alarm.MemberID)
		}
		return told
	}
	const unknown = pb.AlarmType(7)
	expect.Equal(t, "none raised", alarms(pb.AlarmRequest_ACTIVATE, pb.AlarmType_NONE, member), "")
	expect.Equal(t, "none disarmed", alarms(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NONE, member), "")
	expect.Equal(t, "an unknown one disarmed", alarms(pb.AlarmRequest_DEACTIVATE, unknown, member), "")
	expect.Equal(t, "a negative one disarmed", alarms(pb.AlarmRequest_DEACTIVATE, -7, member), "")
	// Members are not looked at.
	expect.Equal(t, "of an unknown member", alarms(pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE, 5), "1 of 5 ")
	expect.Equal(t, "of no member", alarms(pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE, 0), "1 of 0 ")
	expect.Equal(t, "unknown ones", alarms(pb.AlarmRequest_GET, unknown, 0), "")
	expect.Equal(t, "known ones", len(alarms(pb.AlarmRequest_GET, pb.AlarmType_NOSPACE, 77)), len("1 of 5 1 of 0 "))
	expect.Equal(t, "all", len(alarms(pb.AlarmRequest_GET, pb.AlarmType_NONE, 0)), len("1 of 5 1 of 0 "))
	expect.Equal(t, "another one disarmed", alarms(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_CORRUPT, 5), "")
	expect.Equal(t, "the first disarmed", alarms(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE, 5), "1 of 5 ")
	expect.Equal(t, "the second disarmed", alarms(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE, 0), "1 of 0 ")
	// They are kept and told, and stand in nobody's way.
	for _, alarm := range []pb.AlarmType{unknown, -7, math.MaxInt32} {
		want := fmt.Sprintf("%d of %d ", alarm, member)
		expect.Equal(t, "raised", alarms(pb.AlarmRequest_ACTIVATE, alarm, member), want)
		expect.Equal(t, "there", alarms(pb.AlarmRequest_GET, alarm, 0), want)
		errorTexts := expect.Must(client.Status(ctx, server.Endpoint))(t).Errors
		expect.Equal(t, "errors in the status", len(errorTexts), 1)
		expect.Equal(t, "status", strings.Join(strings.Fields(errorTexts[0]), " "), fmt.Sprintf("memberID:%d alarm:%d", member, alarm))
		putAll(t, ctx, client, "a=1")
		server.Kill()
		server.Resume()
		client = server.Client()
		maintenance = pb.NewMaintenanceClient(client.ActiveConnection())
		putAll(t, ctx, client, "a=2")
		expect.Equal(t, "still there", alarms(pb.AlarmRequest_GET, pb.AlarmType_NONE, 0), want)
		for query, code := range map[string]int{"": http.StatusServiceUnavailable, fmt.Sprintf("?exclude=%d", alarm): http.StatusOK} {
			response := expect.Must(http.Get(server.URL() + "/health" + query))(t)
			body := string(expect.Must(io.ReadAll(response.Body))(t))
			_ = response.Body.Close()
			expect.Equal(t, "health", response.StatusCode, code)
			expect.Equal(t, "why", strings.Contains(body, "ALARM UNKNOWN"), query == "")
		}
		expect.Equal(t, "disarmed", alarms(pb.AlarmRequest_DEACTIVATE, alarm, member), want)
	}
	expect.Equal(t, "none is left", alarms(pb.AlarmRequest_GET, pb.AlarmType_NONE, 0), "")
}

func TestQuotaRaisesTheAlarm(t *testing.T) {
	server, client, ctx := start(t, "--quota-backend-bytes=4194304")
	value := strings.Repeat("x", 256<<10)
	var refused error
	for i := range 60 { // 15 MB, well over the quota
		if _, refused = client.Put(ctx, fmt.Sprintf("k%d", i), value); refused != nil {
			break
		}
	}
	wantStatus(t, refused, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded")
	alarms := expect.Must(client.AlarmList(ctx))(t).Alarms
	expect.Equal(t, "alarms", len(alarms), 1)
	expect.Equal(t, "alarm", alarms[0].Alarm, pb.AlarmType_NOSPACE)
	expect.Equal(t, "quota", expect.Must(client.Status(ctx, server.Endpoint))(t).DbSizeQuota, 4<<20)
	// The alarm outlives a restart; deleting, compacting, defragmenting and
	// disarming brings the writes back.
	server.Restart()
	client = server.Client()
	_, err := client.Put(ctx, "k", "v")
	wantStatus(t, err, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded")
	revision := expect.Must(client.Delete(ctx, "k", clientv3.WithPrefix()))(t).Header.Revision
	expect.Must(client.Compact(ctx, revision, clientv3.WithCompactPhysical()))(t)
	expect.Must(client.Defragment(ctx, server.Endpoint))(t)
	expect.Must(client.AlarmDisarm(ctx, &clientv3.AlarmMember{}))(t)
	putAll(t, ctx, client, "k=v")
}

func TestMembers(t *testing.T) {
	server, client, ctx := start(t)
	list := expect.Must(client.MemberList(ctx))(t)
	expect.Equal(t, "members", len(list.Members), 1)
	member := list.Members[0]
	expect.Equal(t, "id", member.ID, list.Header.MemberId)
	expect.Equal(t, "name", member.Name, "subject")
	expect.Equal(t, "client URLs", fmt.Sprint(member.ClientURLs), "["+server.URL()+"]")
	expect.Equal(t, "peer URLs", fmt.Sprint(member.PeerURLs), "["+server.PeerURL()+"]")
	expect.Equal(t, "learner", member.IsLearner, false)
	expect.Equal(t, "no revision in this header", list.Header.Revision, 0)
	expect.NoError(t, client.Sync(ctx))
	expect.Equal(t, "endpoints", fmt.Sprint(client.Endpoints()), "["+server.URL()+"]")

	_, err := client.MemberRemove(ctx, 404)
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = client.MemberUpdate(ctx, 404, []string{"http://127.0.0.1:1"})
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = client.MemberPromote(ctx, 404)
	wantStatus(t, err, codes.NotFound, "etcdserver: member not found")
	_, err = pb.NewClusterClient(client.ActiveConnection()).MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{"not a url"}})
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: given member URLs are invalid")
	_, err = client.MoveLeader(ctx, 404)
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: bad leader transferee")

	cluster := pb.NewClusterClient(client.ActiveConnection())
	// It is the last one, and no learner.
	_, err = cluster.MemberRemove(ctx, &pb.MemberRemoveRequest{ID: member.ID})
	wantRaw(t, err, codes.Unknown, "etcdserver: re-configuration failed due to not enough started members")
	_, err = client.MemberPromote(ctx, member.ID)
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: can only promote a learner member")
	_, err = cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: member.PeerURLs})
	wantRaw(t, err, codes.FailedPrecondition, "etcdserver: Peer URLs already exists")
	for _, urls := range [][]string{nil, {""}, {"host:1"}, {"http://host"}, {"http://host:1/"}, {"ftp://host:1"}, {"http://[::1]"}, {"http:host:1"}, {"http://host:x"}, {"http://a:1:2"}} {
		_, err = cluster.MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: urls})
		wantRaw(t, err, codes.InvalidArgument, "etcdserver: given member URLs are invalid")
	}
	// URLs of a member that is there are not looked at.
	for _, urls := range [][]string{{"http://127.0.0.1:1", "http://127.0.0.1:2"}, {"not a url"}, nil, member.PeerURLs} {
		updated := expect.Must(cluster.MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: member.ID, PeerURLs: urls}))(t)
		expect.Equal(t, "peer URLs", fmt.Sprint(updated.Members[0].PeerURLs), fmt.Sprint(urls))
		expect.Equal(t, "no revision", updated.Header.Revision, 0)
	}
}

func TestSnapshot(t *testing.T) {
	server, client, ctx := start(t)
	putAll(t, ctx, client, "a=1")
	stream := expect.Must(pb.NewMaintenanceClient(client.ActiveConnection()).Snapshot(ctx, &pb.SnapshotRequest{}))(t)
	var content bytes.Buffer
	var last *pb.SnapshotResponse
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		expect.NoError(t, err)
		content.Write(chunk.Blob)
		last = chunk
	}
	expect.Equal(t, "a whole number of pages and a checksum", content.Len() > 32 && content.Len()%512 == 32, true)
	database, checksum := content.Bytes()[:content.Len()-32], content.Bytes()[content.Len()-32:]
	expect.Equal(t, "checksum", sha256.Sum256(database), [32]byte(checksum))
	expect.Equal(t, "remaining at the end", last.RemainingBytes, uint64(0))
	// A new etcd raises its storage version some time after it serves.
	if server.Subject().IsOurs() {
		expect.Equal(t, "version", last.Version, "3.7.0")
	}
}

func TestHealthService(t *testing.T) {
	_, client, ctx := start(t)
	health := healthpb.NewHealthClient(client.ActiveConnection())
	expect.Equal(t, "server", expect.Must(health.Check(ctx, &healthpb.HealthCheckRequest{}))(t).Status, healthpb.HealthCheckResponse_SERVING)
	_, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"})
	wantStatus(t, err, codes.NotFound, "unknown service")
	watch := expect.Must(health.Watch(ctx, &healthpb.HealthCheckRequest{}))(t)
	expect.Equal(t, "watched", expect.Must(watch.Recv())(t).Status, healthpb.HealthCheckResponse_SERVING)
	unknown := expect.Must(health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"}))(t)
	expect.Equal(t, "unknown", expect.Must(unknown.Recv())(t).Status, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
}
