package clientsuite

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

var errSame = errors.New("still the same")

// connect opens a client over TLS.
func connect(server *harness.Server, config *tls.Config) *clientv3.Client {
	return server.ClientWith(clientv3.Config{TLS: config})
}

func TestTLSClient(t *testing.T) {
	t.Parallel()
	ours, theirs := harness.NewAuthority(t), harness.NewAuthority(t)
	server := harness.Start(t, ours.ServerFlags()...)
	ctx := harness.Context(t, time.Minute)

	client := connect(server, ours.Client())
	watch := client.Watch(ctx, "a", clientv3.WithPrefix())
	putAll(t, ctx, client, "a=1", "ab=2")
	wantEvents(t, watch, "PUT a=1 @2", "PUT ab=2 @3")
	lease := expect.Must(client.Grant(ctx, 60))(t)
	expect.Must(client.KeepAliveOnce(ctx, lease.ID))(t)
	members := expect.Must(client.MemberList(ctx))(t)
	expect.Equal(t, "client URL", strings.Join(members.Members[0].ClientURLs, ","), server.URL())

	// Large messages cross many records.
	large := strings.Repeat("x", 1_000_000)
	expect.Must(client.Put(ctx, "large", large))(t)
	expect.Equal(t, "length", len(expect.Must(client.Get(ctx, "large"))(t).Kvs[0].Value), len(large))

	// Nobody else is taken for the server, and nobody gets in without TLS.
	short := harness.Context(t, 3*time.Second)
	for _, config := range []*tls.Config{theirs.Client(), nil} {
		if _, err := connect(server, config).Get(short, "a"); err == nil {
			t.Fatal("served")
		}
	}

	// HTTP is served at the same place.
	browser := http.Client{Transport: &http.Transport{TLSClientConfig: ours.Client(), ForceAttemptHTTP2: true}}
	answer := expect.Must(browser.Get(server.URL() + "/health"))(t)
	defer answer.Body.Close()
	expect.Equal(t, "status", answer.StatusCode, http.StatusOK)
	expect.Equal(t, "protocol", answer.Proto, "HTTP/2.0")
}

// demanding starts a server that lets in only clients of its authority.
func demanding(t *testing.T, flags ...string) (*harness.Server, *harness.Authority) {
	t.Helper()
	authority := harness.NewAuthority(t)
	flags = append(flags, authority.ServerFlags()...)
	return harness.Start(t, append(flags, "--trusted-ca-file="+authority.File, "--bcrypt-cost=4")...), authority
}

func TestTLSClientCertificates(t *testing.T) {
	t.Parallel()
	// The authority alone makes clients show certificates.
	server, ours := demanding(t)
	theirs := harness.NewAuthority(t)
	ctx := harness.Context(t, time.Minute)
	expect.Must(connect(server, ours.Client(ours.Issue("ann"))).Put(ctx, "a", "1"))(t)
	short := harness.Context(t, 3*time.Second)
	for _, config := range []*tls.Config{ours.Client(), ours.Client(theirs.Issue("ann"))} {
		if _, err := connect(server, config).Get(short, "a"); err == nil {
			t.Fatal("served")
		}
	}
}

// users makes root and ann, who may do everything below "a", and turns
// authentication on.
func users(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx := harness.Context(t, time.Minute)
	expect.Must(client.UserAdd(ctx, "root", "password"))(t)
	expect.Must(client.UserGrantRole(ctx, "root", "root"))(t)
	expect.Must(client.UserAddWithOptions(ctx, "ann", "", &clientv3.UserAddOptions{NoPassword: true}))(t)
	expect.Must(client.RoleAdd(ctx, "below-a"))(t)
	kind := clientv3.PermissionType(clientv3.PermReadWrite)
	expect.Must(client.RoleGrantPermission(ctx, "below-a", "a", "b", kind))(t)
	expect.Must(client.UserGrantRole(ctx, "ann", "below-a"))(t)
	expect.Must(client.AuthEnable(ctx))(t)
}

func TestTLSCommonNamesAreUsers(t *testing.T) {
	t.Parallel()
	server, authority := demanding(t, "--client-cert-auth")
	ctx := harness.Context(t, time.Minute)
	ann := connect(server, authority.Client(authority.Issue("ann")))
	bob := connect(server, authority.Client(authority.Issue("bob")))
	nobody := connect(server, authority.Client(authority.Issue("")))
	root := connect(server, authority.Client(authority.Issue("root")))

	// Who somebody is matters only with authentication on.
	expect.Must(bob.Put(ctx, "z", "1"))(t)
	users(t, bob)

	expect.Must(root.Put(ctx, "z", "2"))(t)
	expect.Must(root.UserList(ctx))(t)
	expect.Must(ann.Put(ctx, "a1", "1"))(t)
	expect.Must(ann.Get(ctx, "a", clientv3.WithRange("b")))(t)
	expect.Must(ann.UserGet(ctx, "ann"))(t)
	lease := expect.Must(ann.Grant(ctx, 60))(t)
	expect.Must(ann.Put(ctx, "a2", "1", clientv3.WithLease(lease.ID)))(t)
	expect.Must(ann.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys()))(t)
	expect.Must(ann.Revoke(ctx, lease.ID))(t)
	watch := ann.Watch(ctx, "a", clientv3.WithRange("b"))
	expect.Must(ann.Put(ctx, "a1", "2"))(t)
	wantEvents(t, watch, "PUT a1=2 @7")

	denied := func(client *clientv3.Client, want error) {
		t.Helper()
		_, err := client.Put(ctx, "z", "3")
		wantStatus(t, err, want.(rpctypes.EtcdError).Code(), want.Error())
		_, err = client.Get(ctx, "z")
		wantStatus(t, err, want.(rpctypes.EtcdError).Code(), want.Error())
	}
	denied(ann, rpctypes.ErrPermissionDenied)
	denied(bob, rpctypes.ErrPermissionDenied)
	denied(nobody, rpctypes.ErrPermissionDenied)
	administer := func(client *clientv3.Client, code codes.Code, text string) {
		t.Helper()
		_, err := client.UserAdd(ctx, "carl", "password")
		wantStatus(t, err, code, text)
		_, err = client.UserList(ctx)
		wantStatus(t, err, code, text)
	}
	administer(ann, codes.PermissionDenied, "etcdserver: permission denied")
	administer(bob, codes.FailedPrecondition, "etcdserver: user name not found")
	administer(nobody, codes.InvalidArgument, "etcdserver: user name is empty")

	// A token counts for more than a certificate.
	token := server.ClientWith(clientv3.Config{
		TLS: authority.Client(authority.Issue("ann")), Username: "root", Password: "password",
	})
	expect.Must(token.Put(ctx, "z", "3"))(t)

	// Over HTTP a certificate is nobody, and whoever comes with one is told.
	browser := http.Client{Transport: &http.Transport{TLSClientConfig: authority.Client(authority.Issue("root"))}}
	body := strings.NewReader(`{"key":"YQ=="}`)
	answer := expect.Must(browser.Post(server.URL()+"/v3/kv/range", "application/json", body))(t)
	defer answer.Body.Close()
	expect.Equal(t, "status", answer.StatusCode, http.StatusBadRequest)
	text := string(expect.Must(io.ReadAll(answer.Body))(t))
	expect.Equal(t, "text", text, "CommonName of client sending a request against gateway will be ignored and not used as expected\n")

	// A user who has gone has no rights, whatever the certificate says.
	expect.Must(root.UserDelete(ctx, "ann"))(t)
	denied(ann, rpctypes.ErrPermissionDenied)
}

func TestTLSCommonNamesAreNotUsersUnlessAsked(t *testing.T) {
	t.Parallel()
	server, authority := demanding(t)
	ctx := harness.Context(t, time.Minute)
	root := connect(server, authority.Client(authority.Issue("root")))
	users(t, root)
	_, err := root.Get(ctx, "a")
	wantStatus(t, err, codes.InvalidArgument, "etcdserver: user name is empty")
	token := server.ClientWith(clientv3.Config{
		TLS: authority.Client(authority.Issue("ann")), Username: "root", Password: "password",
	})
	expect.Must(token.Get(ctx, "a"))(t)
}

// TestTLSCertificateReplaced: new connections see the new certificate.
func TestTLSCertificateReplaced(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	pair := authority.Issue("server", "127.0.0.1")
	server := harness.Start(t, "--cert-file="+pair.CertFile, "--key-file="+pair.KeyFile)
	serial := func() string {
		conn := expect.Must(tls.Dial("tcp", server.Endpoint, authority.Client()))(t)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	authority.Replace(pair, "server", "127.0.0.1")
	harness.Eventually(t, 10*time.Second, "another certificate", func() error {
		if serial() == first {
			return errSame
		}
		return nil
	})
	expect.Must(connect(server, authority.Client()).Put(harness.Context(t, time.Minute), "a", "1"))(t)
}
