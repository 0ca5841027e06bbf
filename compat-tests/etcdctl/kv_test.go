package etcdctlsuite

import "testing"

func TestPut(t *testing.T) {
	p := newPair(t)
	for _, format := range []string{"simple", "fields", "json"} {
		p.ok("put a " + format + " -w " + format)
		p.ok("put a again --prev-kv -w " + format)
	}
	p.ok("put -w json --hex b 1")
	p.ok("put new 1 --prev-kv")
	p.ok("put -- dashed -value")
	p.input("from standard input\nsecond line", "put piped")
	p.ok("get piped")
	p.runArgs([]string{"put", "white space", "two words\ttab"}, "", succeeds)
	p.runArgs([]string{"put", "binary\x01\xff", "\x02\xfe"}, "", succeeds)
	p.runArgs([]string{"get", "white space"}, "", succeeds)
	p.runArgs([]string{"get", "binary\x01\xff", "-w", "json"}, "", succeeds)
	p.runArgs([]string{"put", "empty", ""}, "", succeeds)
	p.ok("get empty")
	p.ok("put a --ignore-value")
	p.ok("get a -w json")
	p.fails("put missing --ignore-value")
	p.fails("put missing x --ignore-lease")
	p.fails("put a x --lease=4d2")
	p.fails("put a x --lease=nothex")
	p.runArgs([]string{"put", "", "x"}, "", fails)
	p.capture("lease", `lease (\S+) granted`, "lease grant 1000")
	p.ok("put leased 1 --lease={lease}")
	p.ok("get leased -w json")
	p.ok("put leased 2 --ignore-lease")
	p.ok("get leased -w fields")
	p.fails("put leased 3 --lease={lease} --ignore-lease")
	p.ok("put leased 3")
	p.ok("get leased -w json")
}

func TestGet(t *testing.T) {
	p := newPair(t)
	for _, pair := range []string{"k3 c", "k1 b", "k2 a", "k1 bb", "other x", "k2 aa"} {
		p.ok("put " + pair)
	}
	for _, format := range []string{"simple", "fields", "json"} {
		for _, get := range []string{
			"get k1", "get nothing", "get k1 k3", "get k --prefix", "get k2 --from-key",
			"get k --prefix --limit=2", "get k --prefix --keys-only",
			"get k --prefix --rev=3", "get k1 --consistency=s", "get k1 --consistency=l",
			"get k --prefix --print-value-only", "get k --prefix --stream",
		} {
			if format != "simple" && get == "get k --prefix --print-value-only" {
				p.fails(get + " -w " + format)
				continue
			}
			p.ok(get + " -w " + format)
		}
	}
	p.ok("get k --prefix -w json --hex")
	p.ok("get k --prefix --count-only -w fields")
	p.fails("get k --prefix --count-only")
	p.runArgs([]string{"get", "", "--prefix"}, "", succeeds)
	p.runArgs([]string{"get", "", "--from-key"}, "", succeeds)
	for _, sort := range []string{"CREATE", "KEY", "MODIFY", "VALUE", "VERSION"} {
		for _, order := range []string{"ASCEND", "DESCEND"} {
			p.ok("get k --prefix --limit=2 -w json --sort-by=" + sort + " --order=" + order)
		}
	}
	p.ok("get k --prefix --min-mod-rev=5")
	p.ok("get k --prefix --max-mod-rev=4")
	p.ok("get k --prefix --min-create-rev=3")
	p.ok("get k --prefix --max-create-rev=3")
	p.fails("get k --prefix --stream --order=DESCEND")
	p.fails("get k1 --rev=99")
	p.fails("get")
	p.fails("get k1 k2 --prefix")
	p.fails("get k1 --from-key --prefix")
	p.fails("get k1 --sort-by=COLOUR")
	p.fails("get k1 --order=SIDEWAYS")
	p.fails("get k1 --consistency=x")
	p.fails("get k1 -w table")
	p.ok("compaction 4")
	p.fails("get k1 --rev=3")
}

func TestDel(t *testing.T) {
	p := newPair(t)
	for _, key := range []string{"a1", "a2", "a3", "b1", "b2", "c1", "d1", "d2", "e1", "e2"} {
		p.ok("put " + key + " v" + key)
	}
	p.ok("del nothing")
	p.ok("del a1")
	p.ok("del a2 --prev-kv")
	p.ok("del b --prefix --prev-kv -w json")
	p.ok("del a3 -w fields --prev-kv")
	p.ok("del c1 d2")
	p.fails("del d --prefix --from-key")
	p.ok("del e1 -w json --hex")
	p.ok("del d2 --from-key --prev-kv")
	p.runArgs([]string{"get", "", "--prefix", "-w", "json"}, "", succeeds)
	p.runArgs([]string{"del", "", "--prefix"}, "", succeeds)
	p.fails("del")
}

func TestTxn(t *testing.T) {
	p := newPair(t)
	p.ok("put a 1")
	p.ok("put b 1")
	request := "value(\"a\") = \"1\"\nmod(\"b\") > \"0\"\n\nput a 2\nget b\ndel b\nput c \"two words\"\n\nget a\n\n"
	p.input(request, "txn")
	p.input(request, "txn")
	p.input(request, "txn -w json")
	p.input(request, "txn -w fields")
	p.input("ver(\"a\") > \"1\"\nc(\"a\") = \"2\"\n\nput a 3 --prev-kv\nget a --rev=2\n\nput a wrong\n\n", "txn -i")
	p.input("ver(\"none\") = \"0\"\n\nget \"\" --prefix\n\n\n", "txn")
	p.input("value(\"a\") < \"9\"\n\ndel \"\" --prefix\n\n\n", "txn -w json")
	p.input("\n\n\n", "txn")
	p.runArgs([]string{"txn"}, "\nput a 1\nput a 2\n\n\n", fails)
	p.runArgs([]string{"txn"}, "\nget a --rev=99\n\n\n", fails)
	p.runArgs([]string{"txn"}, "nonsense\n\n\n\n", fails)
	p.runArgs([]string{"txn"}, "\nput a 1 --lease=4d2\n\n\n", fails)
	p.runArgs([]string{"get", "", "--prefix", "-w", "json"}, "", succeeds)
}
