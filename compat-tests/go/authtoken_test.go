package clientsuite

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// How long a token is good, and for whom.

func TestAuthTokenPlaces(t *testing.T) {
	_, nobody, root, ann := secured(t)
	root.grant(t, "r", authpb.READ, "a", "")
	get := func(pairs ...string) error {
		ctx := metadata.AppendToOutgoingContext(nobody.ctx, pairs...)
		_, err := nobody.kv().Range(ctx, &pb.RangeRequest{Key: []byte("a")})
		return err
	}
	for _, pairs := range [][]string{
		{"token", ann.token},
		{"token", "Bearer " + ann.token},
		{"authorization", ann.token},
		{"authorization", "Bearer " + ann.token},
		{"token", ann.token, "authorization", "x"},
		{"token", ann.token, "token", "x"},
	} {
		expect.NoError(t, get(pairs...))
	}
	for _, pairs := range [][]string{
		{"token", ""},
		{"token", "x"},
		{"token", ann.token + "x"},
		{"token", "x" + ann.token},
		{"token", ann.token + ".1"},
		{"token", "x", "authorization", ann.token},
		{"authorization", "bearer " + ann.token},
		{"authorization", "Basic " + ann.token},
	} {
		wantStatus(t, get(pairs...), codes.Unauthenticated, badToken)
	}
}

func TestAuthTokenEnds(t *testing.T) {
	_, nobody, root, ann := secured(t)
	root.grant(t, "r", authpb.READ, "a", "")
	good := func() { t.Helper(); expect.NoError(t, ann.get("a", "")) }
	over := func() { t.Helper(); wantStatus(t, ann.get("a", ""), codes.Unauthenticated, badToken) }
	auth, ctx := root.auth(), root.context()
	good()
	// Changes of roles, permissions and other users don't end it.
	expect.Must(auth.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "s"}))(t)
	expect.Must(auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "ann", Role: "s"}))(t)
	root.grant(t, "s", authpb.WRITE, "b", "")
	good()
	expect.NoError(t, ann.put("b", "1"))
	expect.Must(auth.UserRevokeRole(ctx, &pb.AuthUserRevokeRoleRequest{Name: "ann", Role: "s"}))(t)
	wantStatus(t, ann.put("b", "1"), codes.PermissionDenied, denied)
	expect.Must(auth.UserChangePassword(ctx, &pb.AuthUserChangePasswordRequest{Name: "root", Password: "root-password"}))(t)
	wantStatus(t, root.get("a", ""), codes.Unauthenticated, badToken)
	root = nobody.login(t, "root")
	auth, ctx = root.auth(), root.context()
	good()
	// A password, even the same one.
	expect.Must(auth.UserChangePassword(ctx, &pb.AuthUserChangePasswordRequest{Name: "ann", Password: "ann-password"}))(t)
	over()
	ann = nobody.login(t, "ann")
	good()
	// The user.
	expect.Must(auth.UserDelete(ctx, &pb.AuthUserDeleteRequest{Name: "ann"}))(t)
	over()
	expect.Must(auth.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "ann", Password: "ann-password"}))(t)
	expect.Must(auth.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "ann", Role: "r"}))(t)
	over()
	ann = nobody.login(t, "ann")
	good()
	// Authentication itself. While it is off, tokens don't matter.
	expect.Must(auth.AuthDisable(ctx, &pb.AuthDisableRequest{}))(t)
	good()
	expect.NoError(t, nobody.as("x").get("a", ""))
	expect.Must(auth.AuthEnable(nobody.ctx, &pb.AuthEnableRequest{}))(t)
	over()
	wantStatus(t, root.get("a", ""), codes.Unauthenticated, badToken)
	ann = nobody.login(t, "ann")
	good()
}

func TestAuthTokenLivesWhileUsed(t *testing.T) {
	_, nobody, root, ann := secured(t, "--auth-token-ttl=3")
	root.grant(t, "r", authpb.READ, "a", "")
	idle := nobody.login(t, "ann")
	begun := time.Now()
	for time.Since(begun) < 8*time.Second {
		expect.NoError(t, ann.get("a", ""))
		time.Sleep(300 * time.Millisecond)
	}
	wantStatus(t, idle.get("a", ""), codes.Unauthenticated, badToken)
	expect.NoError(t, nobody.login(t, "ann").get("a", ""))
}

// keys writes the two halves of a key pair and names their files.
func keys(t *testing.T, private any) (privateFile, publicFile string) {
	t.Helper()
	var public any
	switch key := private.(type) {
	case *rsa.PrivateKey:
		public = &key.PublicKey
	case *ecdsa.PrivateKey:
		public = &key.PublicKey
	case ed25519.PrivateKey:
		public = key.Public()
	}
	dir := t.TempDir()
	write := func(name, label string, der []byte, err error) string {
		expect.NoError(t, err)
		path := filepath.Join(dir, name)
		expect.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: label, Bytes: der}), 0o600))
		return path
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	privateFile = write("private.pem", "PRIVATE KEY", secret, err)
	open, err := x509.MarshalPKIXPublicKey(public)
	return privateFile, write("public.pem", "PUBLIC KEY", open, err)
}

// TestAuthJWT: tokens of the subject are good at an etcd with the same key, and the other way round.
func TestAuthJWT(t *testing.T) {
	t.Parallel()
	rsaKey := expect.Must(rsa.GenerateKey(rand.Reader, 2048))(t)
	p256 := expect.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	p384 := expect.Must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	p521 := expect.Must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	expect.NoError(t, err)
	for _, c := range []struct {
		method string
		key    any
	}{
		{"RS256", rsaKey}, {"PS512", rsaKey}, {"ES256", p256}, {"ES384", p384}, {"ES512", p521},
		{"EdDSA", edKey}, {"HS256", rsaKey},
	} {
		t.Run(c.method, func(t *testing.T) {
			private, public := keys(t, c.key)
			flag := fmt.Sprintf("--auth-token=jwt,sign-method=%s,priv-key=%s,ttl=5m", c.method, private)
			if c.method != "HS256" {
				flag += ",pub-key=" + public
			}
			_, nobody, root, ann := secured(t, flag)
			other := etcdBeside(t, flag)
			for _, w := range []wire{root, other.login(t, "root")} {
				expect.NoError(t, nobody.as(w.token).put("k", "v"))
				expect.NoError(t, other.as(w.token).put("k", "v"))
			}
			wantStatus(t, ann.put("k", "v"), codes.PermissionDenied, denied)
			wantStatus(t, nobody.as(root.token+"x").get("k", ""), codes.Unauthenticated, badToken)
			// Any change of users or roles makes tokens old, but not for administration.
			expect.Must(root.auth().RoleAdd(root.context(), &pb.AuthRoleAddRequest{Name: "s"}))(t)
			expect.Must(root.auth().RoleAdd(root.context(), &pb.AuthRoleAddRequest{Name: "t"}))(t)
			const old = "etcdserver: revision of auth store is old"
			wantStatus(t, root.put("k", "v"), codes.InvalidArgument, old)
			wantStatus(t, root.get("k", ""), codes.InvalidArgument, old)
			wantStatus(t, ann.get("k", ""), codes.InvalidArgument, old)
			_, err := root.kv().Txn(root.context(), &pb.TxnRequest{})
			wantStatus(t, err, codes.InvalidArgument, old)
			expect.NoError(t, nobody.login(t, "root").put("k", "v"))
		})
	}
}

func TestAuthJWTVerifyOnly(t *testing.T) {
	private, public := keys(t, expect.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t))
	server, _, ctx := start(t, cheap, "--auth-token=jwt,sign-method=ES256,pub-key="+public)
	nobody := wire{conn: plain(t, server), ctx: ctx}
	expect.Must(nobody.auth().UserAdd(ctx, &pb.AuthUserAddRequest{Name: "root", Password: "root-password"}))(t)
	expect.Must(nobody.auth().UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))(t)
	expect.Must(nobody.auth().AuthEnable(ctx, &pb.AuthEnableRequest{}))(t)
	_, err := nobody.auth().Authenticate(ctx, &pb.AuthenticateRequest{Name: "root", Password: "root-password"})
	wantStatus(t, err, codes.Unknown, "auth: token signing attempted with verify-only key")
	giver := etcdBeside(t, "--auth-token=jwt,sign-method=ES256,priv-key="+private)
	// The giver's auth revision is ahead of this server's, by one user and one role.
	token := giver.login(t, "root").token
	expect.NoError(t, nobody.as(token).put("k", "v"))
}

// etcdBeside runs an etcd with the same users as secured.
func etcdBeside(t *testing.T, flag string) wire {
	t.Helper()
	server := harness.StartSubject(t, harness.Etcd, cheap, flag)
	ctx := harness.Context(t, 2*time.Minute)
	w := wire{conn: plain(t, server), ctx: ctx}
	for _, name := range []string{"root", "ann"} {
		expect.Must(w.auth().UserAdd(ctx, &pb.AuthUserAddRequest{Name: name, Password: name + "-password"}))(t)
	}
	expect.Must(w.auth().RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "r"}))(t)
	expect.Must(w.auth().UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))(t)
	expect.Must(w.auth().UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "ann", Role: "r"}))(t)
	expect.Must(w.auth().AuthEnable(ctx, &pb.AuthEnableRequest{}))(t)
	return w
}
