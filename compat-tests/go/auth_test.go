package clientsuite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// Users, roles and permissions: the rules of administration, and who may do what with keys.

const (
	denied    = "etcdserver: permission denied"
	userEmpty = "etcdserver: user name is empty"
	badToken  = "etcdserver: invalid auth token"
)

// cheap makes a password cost as little as it may.
const cheap = "--bcrypt-cost=4"

// wire is the API as generated, with a token of one's own choice.
type wire struct {
	conn  *grpc.ClientConn
	ctx   context.Context
	token string
}

func (w wire) as(token string) wire { w.token = token; return w }

func (w wire) context() context.Context {
	if w.token == "" {
		return w.ctx
	}
	return metadata.AppendToOutgoingContext(w.ctx, "token", w.token)
}

func (w wire) auth() pb.AuthClient               { return pb.NewAuthClient(w.conn) }
func (w wire) kv() pb.KVClient                   { return pb.NewKVClient(w.conn) }
func (w wire) lease() pb.LeaseClient             { return pb.NewLeaseClient(w.conn) }
func (w wire) maintenance() pb.MaintenanceClient { return pb.NewMaintenanceClient(w.conn) }
func (w wire) cluster() pb.ClusterClient         { return pb.NewClusterClient(w.conn) }

func (w wire) login(t *testing.T, name string) wire {
	t.Helper()
	answer := expect.Must(w.auth().Authenticate(w.ctx, &pb.AuthenticateRequest{Name: name, Password: name + "-password"}))(t)
	return w.as(answer.Token)
}

func (w wire) get(key, end string) error {
	_, err := w.kv().Range(w.context(), &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
	return err
}

func (w wire) put(key, value string) error {
	_, err := w.kv().Put(w.context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	return err
}

// grant gives a role a permission.
func (w wire) grant(t *testing.T, role string, kind authpb.Permission_Type, key, end string) {
	t.Helper()
	permission := &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}
	request := &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: permission}
	expect.Must(w.auth().RoleGrantPermission(w.context(), request))(t)
}

// plain connects to a server without the client package, which would try again what is refused.
func plain(t *testing.T, server *harness.Server) *grpc.ClientConn {
	t.Helper()
	conn := expect.Must(grpc.NewClient(server.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// secured runs a server with authentication on: root, and ann, who has the role r. Returns the wire
// as nobody, as root and as ann.
func secured(t *testing.T, flags ...string) (server *harness.Server, nobody, root, ann wire) {
	t.Helper()
	server, _, ctx := start(t, append([]string{cheap}, flags...)...)
	nobody = wire{conn: plain(t, server), ctx: ctx}
	for _, name := range []string{"root", "ann"} {
		expect.Must(nobody.auth().UserAdd(ctx, &pb.AuthUserAddRequest{Name: name, Password: name + "-password"}))(t)
	}
	expect.Must(nobody.auth().RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "r"}))(t)
	expect.Must(nobody.auth().UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))(t)
	expect.Must(nobody.auth().UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "ann", Role: "r"}))(t)
	expect.Must(nobody.auth().AuthEnable(ctx, &pb.AuthEnableRequest{}))(t)
	return server, nobody, nobody.login(t, "root"), nobody.login(t, "ann")
}

func TestAuthAdministration(t *testing.T) {
	server, _, ctx := start(t, cheap)
	auth := pb.NewAuthClient(plain(t, server))
	status := func() string {
		s := expect.Must(auth.AuthStatus(ctx, &pb.AuthStatusRequest{}))(t)
		return fmt.Sprintf("%v %d", s.Enabled, s.AuthRevision)
	}
	type call func() error
	enable := func() error { _, err := auth.AuthEnable(ctx, &pb.AuthEnableRequest{}); return err }
	disable := func() error { _, err := auth.AuthDisable(ctx, &pb.AuthDisableRequest{}); return err }
	authenticate := func(name, password string) call {
		return func() error {
			_, err := auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: name, Password: password})
			return err
		}
	}
	add := func(name, password string, options *authpb.UserAddOptions) call {
		return func() error {
			_, err := auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: name, Password: password, Options: options})
			return err
		}
	}
	remove := func(name string) call {
		return func() error { _, err := auth.UserDelete(ctx, &pb.AuthUserDeleteRequest{Name: name}); return err }
	}
	passwd := func(name, password, hashed string) call {
		return func() error {
			_, err := auth.UserChangePassword(ctx, &pb.AuthUserChangePasswordRequest{Name: name, Password: password, HashedPassword: hashed})
			return err
		}
	}
	grant := func(user, role string) call {
		return func() error {
			_, err := auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: user, Role: role})
			return err
		}
	}
	revoke := func(user, role string) call {
		return func() error {
			_, err := auth.UserRevokeRole(ctx, &pb.AuthUserRevokeRoleRequest{Name: user, Role: role})
			return err
		}
	}
	role := func(name string) call {
		return func() error { _, err := auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: name}); return err }
	}
	unrole := func(name string) call {
		return func() error { _, err := auth.RoleDelete(ctx, &pb.AuthRoleDeleteRequest{Role: name}); return err }
	}
	allow := func(role string, kind authpb.Permission_Type, key, end string) call {
		return func() error {
			perm := &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}
			_, err := auth.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: perm})
			return err
		}
	}
	nothing := func() error {
		_, err := auth.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "r"})
		return err
	}
	forbid := func(role, key, end string) call {
		return func() error {
			_, err := auth.RoleRevokePermission(ctx, &pb.AuthRoleRevokePermissionRequest{Role: role, Key: []byte(key), RangeEnd: []byte(end)})
			return err
		}
	}
	getUser := func(name string) call {
		return func() error { _, err := auth.UserGet(ctx, &pb.AuthUserGetRequest{Name: name}); return err }
	}
	getRole := func(name string) call {
		return func() error { _, err := auth.RoleGet(ctx, &pb.AuthRoleGetRequest{Role: name}); return err }
	}
	noPassword := &authpb.UserAddOptions{NoPassword: true}
	const (
		precondition = codes.FailedPrecondition
		argument     = codes.InvalidArgument
		read         = authpb.READ
		noSuchUser   = "etcdserver: user name not found"
		noSuchRole   = "etcdserver: role name not found"
		management   = "etcdserver: invalid auth management"
		wrong        = "etcdserver: authentication failed, invalid user ID or password"
		notEnabled   = "etcdserver: authentication is not enabled"
		withPassword = "auth: authentication failed, password was given for no password user"
		tooLong      = "bcrypt: password length exceeds 72 bytes"
	)
	// Each call in order, what it is answered, and the state after it.
	for i, step := range []struct {
		call  call
		code  codes.Code
		text  string
		after string
	}{
		{authenticate("root", "x"), precondition, notEnabled, "false 1"},
		{enable, precondition, "etcdserver: root user does not exist", "false 1"},
		{disable, 0, "", "false 1"},
		{add("", "x", nil), argument, userEmpty, "false 1"},
		{add("root", "root", nil), 0, "", "false 2"},
		{add("root", "root", nil), precondition, "etcdserver: user name already exists", "false 2"},
		{add("long", strings.Repeat("x", 73), nil), codes.Unknown, tooLong, "false 2"},
		{enable, precondition, "etcdserver: root user does not have root role", "false 2"},
		{role(""), argument, "etcdserver: role name is empty", "false 2"},
		{role("r"), 0, "", "false 3"},
		{role("r"), precondition, "etcdserver: role name already exists", "false 3"},
		{grant("nobody", "r"), precondition, noSuchUser, "false 3"},
		{grant("root", "nothing"), precondition, noSuchRole, "false 3"},
		{grant("root", "root"), 0, "", "false 4"},
		{grant("root", "root"), 0, "", "false 4"},
		{getRole("root"), precondition, noSuchRole, "false 4"},
		{revoke("nobody", "r"), precondition, noSuchUser, "false 4"},
		{revoke("root", "r"), precondition, "etcdserver: role is not granted to the user", "false 4"},
		{nothing, argument, "etcdserver: permission not given", "false 4"},
		{allow("nothing", read, "a", ""), precondition, noSuchRole, "false 4"},
		{allow("r", read, "", "\x00"), argument, management, "false 4"},
		{allow("r", read, "b", "a"), argument, management, "false 4"},
		{allow("r", read, "b", "b"), argument, management, "false 4"},
		{allow("r", read, "b", "\x00"), 0, "", "false 5"},
		{allow("r", authpb.READWRITE, "b", "\x00"), 0, "", "false 6"},
		{forbid("nothing", "b", ""), precondition, noSuchRole, "false 6"},
		{forbid("r", "b", ""), precondition, "etcdserver: permission is not granted to the role", "false 6"},
		{forbid("r", "b", "\x00"), 0, "", "false 7"},
		{add("cert", "ignored", noPassword), 0, "", "false 8"},
		{passwd("cert", "x", ""), 0, "", "false 9"},
		{passwd("cert", "", "no base64"), 0, "", "false 10"},
		{passwd("nobody", "x", ""), precondition, noSuchUser, "false 10"},
		{passwd("nobody", "", "no base64"), precondition, noSuchUser, "false 10"},
		{passwd("root", "", "no base64"), codes.Unknown, withPassword, "false 10"},
		{getUser("nobody"), precondition, noSuchUser, "false 10"},
		{getRole("nothing"), precondition, noSuchRole, "false 10"},
		{remove("nobody"), precondition, noSuchUser, "false 10"},
		{unrole("nothing"), precondition, noSuchRole, "false 10"},
		{enable, 0, "", "true 10"},
		{enable, argument, userEmpty, "true 10"},
		{disable, argument, userEmpty, "true 10"},
		{add("x", "x", nil), argument, userEmpty, "true 10"},
		{remove("x"), argument, userEmpty, "true 10"},
		{getUser("root"), argument, userEmpty, "true 10"},
		{getUser(""), precondition, noSuchUser, "true 10"},
		{getRole("r"), argument, userEmpty, "true 10"},
		{authenticate("nobody", "x"), argument, wrong, "true 10"},
		{authenticate("", ""), argument, wrong, "true 10"},
		{authenticate("root", "x"), argument, wrong, "true 10"},
		{authenticate("root", strings.Repeat("x", 100)), argument, wrong, "true 10"},
		{authenticate("cert", "x"), codes.Unknown, withPassword, "true 10"},
		{authenticate("root", "root"), 0, "", "true 10"},
	} {
		err := step.call()
		if step.code == 0 {
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		} else {
			t.Run(fmt.Sprint("step ", i), func(t *testing.T) { wantStatus(t, err, step.code, step.text) })
		}
		expect.Equal(t, fmt.Sprintf("state after step %d", i), status(), step.after)
	}
}

func TestAuthRootCannotBeTakenApart(t *testing.T) {
	_, _, root, _ := secured(t)
	auth, ctx := root.auth(), root.context()
	const management = "etcdserver: invalid auth management"
	_, err := auth.UserDelete(ctx, &pb.AuthUserDeleteRequest{Name: "root"})
	wantStatus(t, err, codes.InvalidArgument, management)
	_, err = auth.UserRevokeRole(ctx, &pb.AuthUserRevokeRoleRequest{Name: "root", Role: "root"})
	wantStatus(t, err, codes.InvalidArgument, management)
	_, err = auth.RoleDelete(ctx, &pb.AuthRoleDeleteRequest{Role: "root"})
	wantStatus(t, err, codes.InvalidArgument, management)
	expect.Must(auth.AuthDisable(ctx, &pb.AuthDisableRequest{}))(t)
	expect.Must(auth.UserRevokeRole(ctx, &pb.AuthUserRevokeRoleRequest{Name: "root", Role: "root"}))(t)
	expect.Must(auth.UserDelete(ctx, &pb.AuthUserDeleteRequest{Name: "root"}))(t)
	_, err = auth.AuthEnable(ctx, &pb.AuthEnableRequest{})
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: root user does not exist")
}

// TestAuthEveryCall asks for everything there is as nobody, with a bad token, as a user without any
// permission, and as root.
func TestAuthEveryCall(t *testing.T) {
	server, nobody, root, ann := secured(t)
	expect.NoError(t, root.put("k", "v"))
	type who struct{ nobody, ann, root string }
	open := who{}
	users := who{nobody: userEmpty}
	admins := who{nobody: userEmpty, ann: denied}
	calls := []struct {
		name string
		want who
		call func(w wire) error
	}{
		{"AuthStatus", open, func(w wire) error {
			_, err := w.auth().AuthStatus(w.context(), &pb.AuthStatusRequest{})
			return err
		}},
		{"Range", admins, func(w wire) error { return w.get("k", "") }},
		{"RangeStream", admins, func(w wire) error {
			stream, err := w.kv().RangeStream(w.context(), &pb.RangeRequest{Key: []byte("k")})
			if err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}},
		{"Put", admins, func(w wire) error { return w.put("k", "v") }},
		{"DeleteRange", admins, func(w wire) error {
			_, err := w.kv().DeleteRange(w.context(), &pb.DeleteRangeRequest{Key: []byte("nothing")})
			return err
		}},
		{"Txn without anything", open, func(w wire) error {
			_, err := w.kv().Txn(w.context(), &pb.TxnRequest{})
			return err
		}},
		{"Compact", admins, func(w wire) error {
			_, err := w.kv().Compact(w.context(), &pb.CompactionRequest{Revision: 1})
			return err
		}},
		{"LeaseGrant", users, func(w wire) error {
			_, err := w.lease().LeaseGrant(w.context(), &pb.LeaseGrantRequest{TTL: 100})
			return err
		}},
		{"LeaseLeases", users, func(w wire) error {
			_, err := w.lease().LeaseLeases(w.context(), &pb.LeaseLeasesRequest{})
			return err
		}},
		{"LeaseTimeToLive", users, func(w wire) error {
			_, err := w.lease().LeaseTimeToLive(w.context(), &pb.LeaseTimeToLiveRequest{ID: 99})
			return err
		}},
		{"LeaseKeepAlive", users, func(w wire) error {
			stream, err := w.lease().LeaseKeepAlive(w.context())
			if err == nil {
				err = stream.Send(&pb.LeaseKeepAliveRequest{ID: 99})
			}
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}},
		{"MemberList", users, func(w wire) error {
			_, err := w.cluster().MemberList(w.context(), &pb.MemberListRequest{Linearizable: true})
			return err
		}},
		{"Status", users, func(w wire) error {
			_, err := w.maintenance().Status(w.context(), &pb.StatusRequest{})
			return err
		}},
		{"Alarm list", users, func(w wire) error {
			_, err := w.maintenance().Alarm(w.context(), &pb.AlarmRequest{})
			return err
		}},
		{"Alarm off", admins, func(w wire) error {
			_, err := w.maintenance().Alarm(w.context(), &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE})
			return err
		}},
		{"Defragment", admins, func(w wire) error {
			_, err := w.maintenance().Defragment(w.context(), &pb.DefragmentRequest{})
			return err
		}},
		{"Hash", admins, func(w wire) error {
			_, err := w.maintenance().Hash(w.context(), &pb.HashRequest{})
			return err
		}},
		{"HashKV", admins, func(w wire) error {
			_, err := w.maintenance().HashKV(w.context(), &pb.HashKVRequest{})
			return err
		}},
		{"UserList", admins, func(w wire) error {
			_, err := w.auth().UserList(w.context(), &pb.AuthUserListRequest{})
			return err
		}},
		{"RoleList", admins, func(w wire) error {
			_, err := w.auth().RoleList(w.context(), &pb.AuthRoleListRequest{})
			return err
		}},
		{"UserGet of root", admins, func(w wire) error {
			_, err := w.auth().UserGet(w.context(), &pb.AuthUserGetRequest{Name: "root"})
			return err
		}},
		{"UserGet of oneself", users, func(w wire) error {
			_, err := w.auth().UserGet(w.context(), &pb.AuthUserGetRequest{Name: "ann"})
			return err
		}},
		{"RoleGet of one's own", users, func(w wire) error {
			_, err := w.auth().RoleGet(w.context(), &pb.AuthRoleGetRequest{Role: "r"})
			return err
		}},
		{"UserAdd", admins, func(w wire) error {
			_, err := w.auth().UserAdd(w.context(), &pb.AuthUserAddRequest{Name: "new", Password: "p"})
			return err
		}},
		{"UserChangePassword", admins, func(w wire) error {
			_, err := w.auth().UserChangePassword(w.context(), &pb.AuthUserChangePasswordRequest{Name: "new", Password: "p"})
			return err
		}},
		{"UserGrantRole", admins, func(w wire) error {
			_, err := w.auth().UserGrantRole(w.context(), &pb.AuthUserGrantRoleRequest{User: "new", Role: "r"})
			return err
		}},
		{"UserRevokeRole", admins, func(w wire) error {
			_, err := w.auth().UserRevokeRole(w.context(), &pb.AuthUserRevokeRoleRequest{Name: "new", Role: "r"})
			return err
		}},
		{"UserDelete", admins, func(w wire) error {
			_, err := w.auth().UserDelete(w.context(), &pb.AuthUserDeleteRequest{Name: "new"})
			return err
		}},
		{"RoleAdd", admins, func(w wire) error {
			_, err := w.auth().RoleAdd(w.context(), &pb.AuthRoleAddRequest{Name: "new"})
			return err
		}},
		{"RoleGrantPermission", admins, func(w wire) error {
			perm := &authpb.Permission{Key: []byte("k")}
			_, err := w.auth().RoleGrantPermission(w.context(), &pb.AuthRoleGrantPermissionRequest{Name: "new", Perm: perm})
			return err
		}},
		{"RoleRevokePermission", admins, func(w wire) error {
			_, err := w.auth().RoleRevokePermission(w.context(), &pb.AuthRoleRevokePermissionRequest{Role: "new", Key: []byte("k")})
			return err
		}},
		{"RoleDelete", admins, func(w wire) error {
			_, err := w.auth().RoleDelete(w.context(), &pb.AuthRoleDeleteRequest{Role: "new"})
			return err
		}},
	}
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			want := func(w wire, text string) {
				t.Helper()
				err := c.call(w)
				switch text {
				case "":
					expect.NoError(t, err)
				case userEmpty:
					wantStatus(t, err, codes.InvalidArgument, text)
				case denied:
					wantStatus(t, err, codes.PermissionDenied, text)
				case badToken:
					wantStatus(t, err, codes.Unauthenticated, text)
				}
			}
			want(nobody, c.want.nobody)
			want(nobody.as("no token at all"), badToken)
			want(ann, c.want.ann)
			want(root, c.want.root)
		})
	}
	// Refused whoever asks, but not with the same words to everybody.
	for name, call := range map[string]func(w wire) error{
		"MemberRemove": func(w wire) error {
			_, err := w.cluster().MemberRemove(w.context(), &pb.MemberRemoveRequest{ID: 1})
			return err
		},
		"MemberUpdate": func(w wire) error {
			_, err := w.cluster().MemberUpdate(w.context(), &pb.MemberUpdateRequest{ID: 1, PeerURLs: []string{"http://127.0.0.1:1"}})
			return err
		},
		"MemberPromote": func(w wire) error {
			_, err := w.cluster().MemberPromote(w.context(), &pb.MemberPromoteRequest{ID: 1})
			return err
		},
		"MoveLeader": func(w wire) error {
			_, err := w.maintenance().MoveLeader(w.context(), &pb.MoveLeaderRequest{TargetID: 1})
			return err
		},
		"Downgrade": func(w wire) error {
			_, err := w.maintenance().Downgrade(w.context(), &pb.DowngradeRequest{Version: "x"})
			return err
		},
		"MemberAdd": func(w wire) error {
			_, err := w.cluster().MemberAdd(w.context(), &pb.MemberAddRequest{PeerURLs: []string{server.PeerURL()}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantStatus(t, call(nobody), codes.InvalidArgument, userEmpty)
			wantStatus(t, call(ann), codes.PermissionDenied, denied)
			if err := call(root); err == nil || strings.Contains(err.Error(), "permission") {
				t.Fatalf("root is told %v", err)
			}
		})
	}
}

// TestAuthRanges covers what a request needs: the union of what is granted, all of it.
func TestAuthRanges(t *testing.T) {
	_, _, root, ann := secured(t)
	root.grant(t, "r", authpb.READ, "a", "c")
	root.grant(t, "r", authpb.READWRITE, "c", "e")
	root.grant(t, "r", authpb.WRITE, "k", "")
	root.grant(t, "r", authpb.READ, "x", "\x00")
	for _, c := range []struct {
		key, end string
		reads    bool
		writes   bool
	}{
		{"a", "", true, false},
		{"a", "c", true, false},
		{"a", "e", true, false},
		{"a", "e\x00", false, false},
		{"c", "e", true, true},
		{"d\xff", "", true, true},
		{"c", "\x00", false, false},
		{"e", "", false, false},
		{"k", "", false, true},
		{"k", "k\x00", false, true},
		{"k", "k\x00\x00", false, false},
		{"k", "l", false, false},
		{"k", "\x00", false, false},
		{"x", "\x00", true, false},
		{"w", "\x00", false, false},
		{"x", "z", true, false},
		{"b", "a", true, false},
		{"f", "a", false, false},
		{"\x00", "\x00", false, false},
	} {
		t.Run(fmt.Sprintf("%q %q", c.key, c.end), func(t *testing.T) {
			check := func(err error, allowed bool) {
				t.Helper()
				if allowed {
					expect.NoError(t, err)
				} else {
					wantStatus(t, err, codes.PermissionDenied, denied)
				}
			}
			check(ann.get(c.key, c.end), c.reads)
			remove := &pb.DeleteRangeRequest{Key: []byte(c.key), RangeEnd: []byte(c.end)}
			_, err := ann.kv().DeleteRange(ann.context(), remove)
			check(err, c.writes)
			remove.PrevKv = true
			_, err = ann.kv().DeleteRange(ann.context(), remove)
			check(err, c.writes && c.reads)
			if c.end == "" {
				put := &pb.PutRequest{Key: []byte(c.key)}
				_, err = ann.kv().Put(ann.context(), put)
				check(err, c.writes)
				put.PrevKv = true
				_, err = ann.kv().Put(ann.context(), put)
				check(err, c.writes && c.reads)
			}
			compare := &pb.Compare{Key: []byte(c.key), RangeEnd: []byte(c.end)}
			_, err = ann.kv().Txn(ann.context(), &pb.TxnRequest{Compare: []*pb.Compare{compare}})
			check(err, c.reads)
		})
	}
	expect.NoError(t, root.get("\x00", "\x00"))
}

// TestAuthTransactions: a transaction needs what any branch of it needs, however deep, taken or not.
func TestAuthTransactions(t *testing.T) {
	_, nobody, root, ann := secured(t)
	root.grant(t, "r", authpb.READWRITE, "a", "b")
	expect.NoError(t, root.put("secret", "s"))
	get := func(key, end string) *pb.RequestOp {
		request := &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: request}}
	}
	put := func(key string, prev bool) *pb.RequestOp {
		request := &pb.PutRequest{Key: []byte(key), PrevKv: prev}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: request}}
	}
	remove := func(key, end string, prev bool) *pb.RequestOp {
		request := &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end), PrevKv: prev}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: request}}
	}
	nested := func(txn *pb.TxnRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: txn}}
	}
	ops := func(ops ...*pb.RequestOp) []*pb.RequestOp { return ops }
	exists := []*pb.Compare{{Key: []byte("secret"), Result: pb.Compare_GREATER, Target: pb.Compare_VERSION}}
	for name, txn := range map[string]*pb.TxnRequest{
		"compare":                    {Compare: exists},
		"compare of a range":         {Compare: []*pb.Compare{{Key: []byte("a"), RangeEnd: []byte("t")}}},
		"read":                       {Success: ops(get("secret", ""))},
		"read of everything":         {Success: ops(get("\x00", "\x00"))},
		"read in the untaken branch": {Failure: ops(get("secret", ""))},
		"write in the untaken branch": {
			Success: ops(put("a", false)), Failure: ops(put("secret", false))},
		"delete in the untaken branch": {
			Success: ops(put("a", false)), Failure: ops(remove("secret", "", false))},
		"read beside a write":    {Success: ops(put("a", false), get("secret", ""))},
		"nested read":            {Success: ops(nested(&pb.TxnRequest{Success: ops(get("secret", ""))}))},
		"nested compare":         {Success: ops(nested(&pb.TxnRequest{Compare: exists}))},
		"nested, untaken twice":  {Failure: ops(nested(&pb.TxnRequest{Failure: ops(get("secret", ""))}))},
		"nested delete of a lot": {Success: ops(nested(&pb.TxnRequest{Success: ops(remove("a", "\x00", false))}))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ann.kv().Txn(ann.context(), txn)
			wantStatus(t, err, codes.PermissionDenied, denied)
			_, err = nobody.kv().Txn(nobody.ctx, txn)
			wantStatus(t, err, codes.InvalidArgument, userEmpty)
			expect.Must(root.kv().Txn(root.context(), txn))(t)
			expect.NoError(t, root.put("secret", "s"))
		})
	}
	allowed := &pb.TxnRequest{
		Success: ops(put("a1", true), get("a", "b"), nested(&pb.TxnRequest{Success: ops(remove("a2", "b", true))})),
	}
	expect.Must(ann.kv().Txn(ann.context(), allowed))(t)
	// Writing without reading.
	expect.Must(root.auth().RoleAdd(root.context(), &pb.AuthRoleAddRequest{Name: "w"}))(t)
	expect.Must(root.auth().UserGrantRole(root.context(), &pb.AuthUserGrantRoleRequest{User: "ann", Role: "w"}))(t)
	root.grant(t, "w", authpb.WRITE, "w", "")
	for _, op := range []*pb.RequestOp{put("w", true), remove("w", "", true), get("w", "")} {
		_, err := ann.kv().Txn(ann.context(), &pb.TxnRequest{Success: ops(op)})
		wantStatus(t, err, codes.PermissionDenied, denied)
	}
	expect.Must(ann.kv().Txn(ann.context(), &pb.TxnRequest{Success: ops(put("w", false))}))(t)
	expect.Must(ann.kv().Txn(ann.context(), &pb.TxnRequest{Success: ops(remove("w", "", false))}))(t)
}

// TestAuthLeases: a lease's end deletes its keys, so it is not for those who may not.
func TestAuthLeases(t *testing.T) {
	_, nobody, root, ann := secured(t)
	root.grant(t, "r", authpb.READWRITE, "a", "b")
	root.grant(t, "r", authpb.WRITE, "w", "")
	grant := func(id int64) {
		t.Helper()
		expect.Must(ann.lease().LeaseGrant(ann.context(), &pb.LeaseGrantRequest{ID: id, TTL: 1000}))(t)
	}
	attach := func(w wire, key string, id int64) error {
		_, err := w.kv().Put(w.context(), &pb.PutRequest{Key: []byte(key), Lease: id})
		return err
	}
	keep := func(w wire, id int64) error {
		stream := expect.Must(w.lease().LeaseKeepAlive(w.context()))(t)
		expect.NoError(t, stream.Send(&pb.LeaseKeepAliveRequest{ID: id}))
		_, err := stream.Recv()
		return err
	}
	left := func(w wire, id int64, keys bool) error {
		_, err := w.lease().LeaseTimeToLive(w.context(), &pb.LeaseTimeToLiveRequest{ID: id, Keys: keys})
		return err
	}
	revoke := func(w wire, id int64) error {
		_, err := w.lease().LeaseRevoke(w.context(), &pb.LeaseRevokeRequest{ID: id})
		return err
	}
	list := func(w wire) error {
		_, err := w.lease().LeaseLeases(w.context(), &pb.LeaseLeasesRequest{})
		return err
	}
	isDenied := func(err error) { t.Helper(); wantStatus(t, err, codes.PermissionDenied, denied) }
	isNobody := func(err error) { t.Helper(); wantStatus(t, err, codes.InvalidArgument, userEmpty) }
	for id := range int64(3) {
		grant(id + 1)
	}
	expect.NoError(t, attach(ann, "a1", 1))
	expect.NoError(t, attach(root, "secret", 2))
	expect.NoError(t, attach(ann, "w", 3))

	expect.NoError(t, keep(ann, 1))
	expect.NoError(t, left(ann, 1, true))
	expect.NoError(t, attach(ann, "a2", 1))
	// Renewing, revoking and joining a lease with a foreign key.
	isDenied(keep(ann, 2))
	isDenied(attach(ann, "a3", 2))
	isDenied(revoke(ann, 2))
	isDenied(left(ann, 2, true))
	expect.NoError(t, left(ann, 2, false))
	// A key that may be written and not read.
	expect.NoError(t, keep(ann, 3))
	isDenied(left(ann, 3, true))
	isDenied(list(ann))
	expect.NoError(t, list(root))
	txn := &pb.TxnRequest{Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte("a4"), Lease: 2}}}}}
	_, err := ann.kv().Txn(ann.context(), txn)
	isDenied(err)
	for _, err := range []error{keep(nobody, 1), left(nobody, 1, true), left(nobody, 1, false), revoke(nobody, 1), list(nobody)} {
		isNobody(err)
	}
	wantStatus(t, revoke(ann, 77), codes.NotFound, "etcdserver: requested lease not found")
	wantStatus(t, attach(ann, "a5", 77), codes.NotFound, "etcdserver: requested lease not found")
	expect.NoError(t, left(ann, 77, true))
	expect.NoError(t, keep(ann, 77))
	expect.NoError(t, revoke(root, 2))
	expect.NoError(t, revoke(ann, 3))
	expect.NoError(t, list(ann))
	expect.NoError(t, revoke(ann, 1))
}

func TestAuthWatches(t *testing.T) {
	_, nobody, root, ann := secured(t)
	root.grant(t, "r", authpb.READ, "a", "b")
	root.grant(t, "r", authpb.READ, "k", "")
	open := func(w wire) pb.Watch_WatchClient {
		return expect.Must(pb.NewWatchClient(w.conn).Watch(w.context()))(t)
	}
	ask := func(stream pb.Watch_WatchClient, create *pb.WatchCreateRequest) string {
		t.Helper()
		expect.NoError(t, stream.Send(createRequest(create)))
		return message(expect.Must(stream.Recv())(t))
	}
	key := func(key, end string) *pb.WatchCreateRequest {
		return &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end)}
	}
	const (
		deniedText = `id=-1 created canceled reason="rpc error: code = PermissionDenied desc = etcdserver: permission denied"`
		nobodyText = `id=-1 created canceled reason="rpc error: code = InvalidArgument desc = etcdserver: user name is empty"`
		tokenText  = `id=-1 created canceled reason="rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"`
	)
	has := func(got, want string) {
		t.Helper()
		if !strings.HasPrefix(got, want) {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	has(ask(open(nobody), key("a", "")), nobodyText)
	has(ask(open(nobody.as("x")), key("a", "")), tokenText)
	stream := open(ann)
	for _, refused := range []*pb.WatchCreateRequest{
		key("c", ""), key("a", "c"), key("\x00", "\x00"), key("", "\x00"), key("", ""),
		// One key is not the rest from it on.
		key("k", "\x00"), key("k", "l"),
	} {
		has(ask(stream, refused), deniedText)
	}
	negative := key("c", "")
	negative.StartRevision = -1
	has(ask(stream, negative), `id=-1 created canceled reason="etcdserver: mvcc: required revision has been compacted"`)
	// The stream lives on.
	has(ask(stream, key("a", "b")), "id=0 created")
	has(ask(stream, key("k", "")), "id=1 created")
	expect.NoError(t, root.put("c", "secret"))
	expect.NoError(t, root.put("a1", "1"))
	event := expect.Must(stream.Recv())(t)
	expect.Equal(t, "events", len(event.Events), 1)
	expect.Equal(t, "key", string(event.Events[0].Kv.Key), "a1")

	// What has been created stays; what comes later is judged anew.
	revoke := &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: []byte("a"), RangeEnd: []byte("b")}
	expect.Must(root.auth().RoleRevokePermission(root.context(), revoke))(t)
	has(ask(stream, key("a", "b")), deniedText)
	expect.NoError(t, root.put("a2", "2"))
	expect.Equal(t, "key", string(expect.Must(stream.Recv())(t).Events[0].Kv.Key), "a2")
	expect.Must(root.auth().UserDelete(root.context(), &pb.AuthUserDeleteRequest{Name: "ann"}))(t)
	has(ask(stream, key("k", "")), tokenText)
	expect.NoError(t, root.put("a3", "3"))
	expect.Equal(t, "key", string(expect.Must(stream.Recv())(t).Events[0].Kv.Key), "a3")
}

// TestAuthClient: what an application sees that only configures a user and a password.
func TestAuthClient(t *testing.T) {
	server, _, root, _ := secured(t)
	root.grant(t, "r", authpb.READWRITE, "a", "b")
	client := server.ClientWith(clientv3.Config{Username: "ann", Password: "ann-password"})
	ctx := root.ctx
	expect.Must(client.Put(ctx, "a1", "1"))(t)
	_, err := client.Get(ctx, "c")
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Fatalf("got %v", err)
	}
	watch := client.Watch(ctx, "a", clientv3.WithPrefix())
	expect.Must(client.Put(ctx, "a2", "2"))(t)
	wantEvents(t, watch, "PUT a2=2 @3")
	// A change of the password ends its token; a client that knows the new one goes on.
	passwd := &pb.AuthUserChangePasswordRequest{Name: "ann", Password: "another"}
	expect.Must(root.auth().UserChangePassword(root.context(), passwd))(t)
	_, err = client.Get(ctx, "a1")
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: authentication failed, invalid user ID or password")
	back := &pb.AuthUserChangePasswordRequest{Name: "ann", Password: "ann-password"}
	expect.Must(root.auth().UserChangePassword(root.context(), back))(t)
	expect.Must(client.Get(ctx, "a1"))(t)
	denied := clientv3.Config{Username: "ann", Password: "wrong", Endpoints: []string{server.Endpoint}}
	if _, err := clientv3.New(denied); !errors.Is(err, rpctypes.ErrAuthFailed) {
		t.Fatalf("got %v", err)
	}
}

func TestAuthSurvivesRestarts(t *testing.T) {
	server, _, root, _ := secured(t)
	root.grant(t, "r", authpb.READWRITE, "a", "b")
	root.grant(t, "r", authpb.READ, "c", "")
	state := func(w wire) string {
		status := expect.Must(w.auth().AuthStatus(w.context(), &pb.AuthStatusRequest{}))(t)
		users := expect.Must(w.auth().UserList(w.context(), &pb.AuthUserListRequest{}))(t)
		role := expect.Must(w.auth().RoleGet(w.context(), &pb.AuthRoleGetRequest{Role: "r"}))(t)
		user := expect.Must(w.auth().UserGet(w.context(), &pb.AuthUserGetRequest{Name: "ann"}))(t)
		return fmt.Sprint(status.Enabled, status.AuthRevision, users.Users, role.Perm, user.Roles)
	}
	before := state(root)
	for _, stop := range []func(){server.Stop, server.Kill} {
		stop()
		server.Resume()
		nobody := wire{conn: plain(t, server), ctx: root.ctx}
		root, ann := nobody.login(t, "root"), nobody.login(t, "ann")
		expect.Equal(t, "users and roles", state(root), before)
		expect.NoError(t, ann.put("a", "1"))
		wantStatus(t, ann.put("c", "1"), codes.PermissionDenied, denied)
		wantStatus(t, nobody.get("a", ""), codes.InvalidArgument, userEmpty)
	}
}
