package etcdctlsuite

import (
	"fmt"
	"strings"
	"testing"
)

// cheap makes a password cost as little as it may.
const cheap = "--bcrypt-cost=4"

// as runs a command as a user.
func (p *pair) as(user, command string) { p.t.Helper(); p.ok("--user " + user + " " + command) }

// alike runs a command in a format that etcdctl may not have for it.
func (p *pair) alike(command string) {
	p.t.Helper()
	answer := p.sides[0].etcdctl(strings.Fields(command), "")
	if answer.code == 0 {
		p.ok(command)
	} else {
		p.fails(command)
	}
}

// every runs a command that changes nothing in all formats that it has.
func (p *pair) every(command string) {
	p.t.Helper()
	p.ok(command)
	p.ok(command + " -w json")
	p.alike(command + " -w fields")
	p.alike(command + " -w table")
}

func (p *pair) everyAs(user, command string) {
	p.t.Helper()
	p.every("--user " + user + " " + command)
}

func (p *pair) refuses(user, command string) { p.t.Helper(); p.fails("--user " + user + " " + command) }

func TestUsersAndRoles(t *testing.T) {
	p := newPair(t, cheap)
	p.every("auth status")
	p.every("user list")
	p.every("role list")
	for i, format := range []string{"simple", "json"} {
		name := func(command string) string {
			return strings.ReplaceAll(command, "NAME", fmt.Sprintf("n%d", i)) + " -w " + format
		}
		p.ok(name("user add NAME:password"))
		p.ok(name("user add NAME-cert --no-password"))
		p.ok(name("role add NAME"))
		p.ok(name("role grant-permission NAME read a"))
		p.ok(name("role grant-permission NAME write b c"))
		p.ok(name("role grant-permission NAME readwrite d --prefix"))
		p.ok(name("role grant-permission NAME read e --from-key"))
		p.ok(name("role get NAME"))
		p.ok(name("user grant-role NAME NAME"))
		p.ok(name("user get NAME"))
		p.ok(name("user get NAME --detail"))
		p.run(name("user passwd NAME --interactive=false"), "another\n", succeeds)
		p.ok(name("role revoke-permission NAME a"))
		p.ok(name("role revoke-permission NAME d --prefix"))
		p.ok(name("role revoke-permission NAME e --from-key"))
		p.ok(name("role get NAME"))
		p.ok(name("user list"))
		p.ok(name("role list"))
		p.ok(name("user revoke-role NAME NAME"))
		p.ok(name("role delete NAME"))
		p.ok(name("user get NAME"))
		p.ok(name("user delete NAME"))
		p.ok(name("user delete NAME-cert"))
		p.ok(name("auth status"))
	}
	p.run("user add stdin --interactive=false", "password\n", succeeds)
	p.ok("user add other --new-user-password=password")
	p.runArgs([]string{"role", "add", "all"}, "", succeeds)
	p.runArgs([]string{"role", "grant-permission", "all", "readwrite", "", "--prefix"}, "", succeeds)
	p.runArgs([]string{"role", "grant-permission", "all", "readwrite", "", "--from-key"}, "", succeeds)
	p.every("role get all")
}

func TestUsersAndRolesRefused(t *testing.T) {
	p := newPair(t, cheap)
	p.fails("user get nobody")
	p.fails("user delete nobody")
	p.fails("user grant-role nobody r")
	p.fails("user revoke-role nobody r")
	p.run("user passwd nobody --interactive=false", "x\n", fails)
	p.fails("role get nothing")
	p.fails("role delete nothing")
	p.fails("role grant-permission nothing read a")
	p.fails("role revoke-permission nothing a")
	p.ok("user add ann:password")
	p.fails("user add ann:password")
	p.ok("role add r")
	p.fails("role add r")
	p.fails("user grant-role ann nothing")
	p.fails("user revoke-role ann r")
	p.fails("role revoke-permission r a")
	p.fails("role grant-permission r read b a")
	p.fails("role grant-permission r nonsense a")
	p.fails("role grant-permission r")
	p.fails("user add")
	p.fails("auth enable nonsense")
	p.fails("auth enable")
	p.runArgs([]string{"user", "add", ":password"}, "", fails)
	p.ok("auth disable")
}

func TestAuth(t *testing.T) {
	p := newPair(t, cheap)
	for _, command := range []string{
		"user add root:rootpw", "user add ann:annpw", "user add cert --no-password", "role add r",
		"role grant-permission r readwrite a --prefix", "role grant-permission r read k",
		"role grant-permission r write w", "user grant-role ann r", "auth enable",
	} {
		p.ok(command)
	}
	const root, ann = "root:rootpw", "ann:annpw"
	p.every("auth status")
	p.fails("get a")
	p.fails("put a 1")
	p.fails("user list")
	p.fails("auth disable")
	p.refuses("ann:wrong", "get a")
	p.refuses("nobody:x", "get a")
	p.refuses("cert:x", "get a")
	p.refuses(ann, "auth disable")
	p.everyAs(root, "user list")
	p.everyAs(root, "role list")
	p.everyAs(root, "user get root")
	p.everyAs(root, "role get root")
	p.everyAs(ann, "user get ann")
	p.everyAs(ann, "role get r")
	p.refuses(ann, "user get root")
	p.refuses(ann, "role get root")
	p.refuses(ann, "user list")

	p.as(ann, "put a1 1")
	p.as(ann, "put a2 2 --prev-kv")
	p.as(ann, "put w 1")
	p.refuses(ann, "put w 1 --prev-kv")
	p.refuses(ann, "put k 1")
	p.as(root, "put k 1")
	p.as(ann, "get a --prefix")
	p.as(ann, "get k")
	p.refuses(ann, "get k --from-key")
	p.refuses(ann, "get w")
	p.refuses(ann, "del k")
	p.refuses(ann, "del a --from-key")
	p.as(ann, "del a1 --prev-kv")
	p.run("--user "+ann+" txn", "mod(\"a2\") > \"0\"\n\nput a3 3\n\nget a2\n\n", succeeds)
	p.run("--user "+ann+" txn", "mod(\"a2\") > \"0\"\n\nput a3 3\n\nget secret\n\n", fails)
	p.refuses(ann, "watch a --from-key")

	p.as(ann, "member list")
	p.as(ann, "endpoint status")
	p.as(ann, "alarm list")
	p.refuses(ann, "compaction 2")
	p.refuses(ann, "defrag")
	p.refuses(ann, "endpoint hashkv")
	p.as(ann, "alarm disarm")
	p.fails("member list")
	p.fails("endpoint status")
	p.as(root, "compaction 2")
	p.as(root, "alarm disarm")

	p.capture("lease", `lease (\S+) granted`, "--user "+ann+" lease grant 1000")
	p.as(ann, "put a4 4 --lease={lease}")
	p.as(ann, "lease timetolive {lease} --keys")
	p.as(root, "put secret 1 --lease={lease}")
	p.refuses(ann, "lease timetolive {lease} --keys")
	p.as(ann, "lease timetolive {lease}")
	p.refuses(ann, "put a5 5 --lease={lease}")
	p.refuses(ann, "lease keep-alive {lease} --once")
	p.refuses(ann, "lease revoke {lease}")
	p.refuses(ann, "lease list")
	p.as(root, "lease list")
	p.as(root, "lease revoke {lease}")

	p.refuses(root, "user delete root")
	p.refuses(root, "user revoke-role root root")
	p.refuses(root, "role delete root")
	p.run("--user "+root+" user passwd ann --interactive=false", "another\n", succeeds)
	p.refuses(ann, "get a2")
	p.as("ann:another", "get a2")
	p.as(root, "auth disable")
	p.every("auth status")
	p.ok("get a --from-key")
	p.fails("--user ann:annpw put a --")
}

func TestWatchAsUser(t *testing.T) {
	p := newPair(t, cheap)
	for _, command := range []string{
		"user add root:rootpw", "user add ann:annpw", "role add r",
		"role grant-permission r read a --prefix", "user grant-role ann r", "auth enable",
	} {
		p.ok(command)
	}
	b := p.start("--user ann:annpw watch a --prefix --rev=1")
	p.ok("--user root:rootpw put b secret")
	p.ok("--user root:rootpw put a1 open")
	b.await("open")
	p.ok("--user root:rootpw role revoke-permission r a --prefix")
	p.ok("--user root:rootpw put a2 still")
	b.await("still")
	b.stop()
}
