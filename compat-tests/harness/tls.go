package harness

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority gives out certificates, in files of the test's own.
type Authority struct {
	// File holds its own certificate.
	File string

	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	issued      int64
}

// Pair is a certificate and its key.
type Pair struct {
	CertFile, KeyFile string
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	return NamedAuthority(t, "authority")
}

// NamedAuthority makes one with a name of its own.
func NamedAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, File: filepath.Join(t.TempDir(), "ca.pem"), issued: 1}
	template := a.template(name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	a.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
}

// Issue makes a certificate for servers and clients; hosts are names and addresses.
func (a *Authority) Issue(commonName string, hosts ...string) Pair {
	a.t.Helper()
	dir := a.t.TempDir()
	pair := Pair{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	a.Replace(pair, commonName, hosts...)
	return pair
}

// Replace writes a new certificate and key into the files of a pair.
func (a *Authority) Replace(pair Pair, commonName string, hosts ...string) {
	a.t.Helper()
	a.write(pair, newKey(a.t), a.leaf(commonName, hosts...))
}

// IssueFor is Issue for a key of any kind, with a certificate that may be changed before it is signed.
func (a *Authority) IssueFor(key crypto.Signer, change func(*x509.Certificate), commonName string, hosts ...string) Pair {
	a.t.Helper()
	dir := a.t.TempDir()
	pair := Pair{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	template := a.leaf(commonName, hosts...)
	change(template)
	a.write(pair, key, template)
	return pair
}

// Revoke writes a list that has the certificates of these pairs on it, as DER, and returns its file.
func (a *Authority) Revoke(pairs ...Pair) string {
	a.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, pair := range pairs {
		text, err := os.ReadFile(pair.CertFile)
		if err != nil {
			a.t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			a.t.Fatal(err)
		}
		entry := x509.RevocationListEntry{SerialNumber: certificate.SerialNumber, RevocationTime: time.Now()}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, entry)
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.certificate, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	path := filepath.Join(a.t.TempDir(), "revoked.crl")
	if err := os.WriteFile(path, der, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *Authority) leaf(commonName string, hosts ...string) *x509.Certificate {
	template := a.template(commonName)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return template
}

func (a *Authority) write(pair Pair, key crypto.Signer, template *x509.Certificate) {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writePEM(a.t, pair.CertFile, "CERTIFICATE", der)
	writePEM(a.t, pair.KeyFile, "PRIVATE KEY", secret)
}

// ServerFlags are those of a server on this machine with a certificate.
func (a *Authority) ServerFlags() []string {
	a.t.Helper()
	pair := a.Issue("server", "127.0.0.1", "localhost")
	return []string{"--cert-file=" + pair.CertFile, "--key-file=" + pair.KeyFile}
}

// Client trusts the authority, and shows a pair if one is given.
func (a *Authority) Client(pairs ...Pair) *tls.Config {
	a.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.certificate)
	for _, pair := range pairs {
		certificate, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			a.t.Fatal(err)
		}
		config.Certificates = append(config.Certificates, certificate)
	}
	return config
}

func (a *Authority) template(commonName string) *x509.Certificate {
	a.issued++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.issued),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
