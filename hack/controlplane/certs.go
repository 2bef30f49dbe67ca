package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// authority is the control plane's own certificate authority. Every control plane
// makes one when it starts, so no key is ever shared or kept in the source tree.
// All keys are ECDSA: they take next to no time to make.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificateTemplate(pkix.Name{CommonName: "clusterstack-controlplane"})
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key, encode("CERTIFICATE", der)}, nil
}

// serving issues the API server's certificate.
func (a *authority) serving() (certificate, key []byte, err error) {
	template := certificateTemplate(pkix.Name{CommonName: "kube-apiserver"})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(serviceIP)}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	return a.issue(template)
}

// kubeconfig issues a client certificate and wraps it into a kubeconfig. Every user
// is in system:masters: what the components may do is not what is tested here, but
// their names in the audit log help.
func (a *authority) kubeconfig(user, server string) ([]byte, error) {
	template := certificateTemplate(pkix.Name{CommonName: user, Organization: []string{"system:masters"}})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	certificate, key, err := a.issue(template)
	if err != nil {
		return nil, err
	}
	base64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: controlplane
contexts:
- name: controlplane
  context:
    cluster: controlplane
    user: %[1]s
clusters:
- name: controlplane
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: %[1]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
`, user, server, base64(a.pem), base64(certificate), base64(key)), nil
}

func (a *authority) issue(template *x509.Certificate) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, _, err = encodeKeys(private)
	return encode("CERTIFICATE", der), key, err
}

func certificateTemplate(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		Subject:               subject,
		SerialNumber:          serial,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		BasicConstraintsValid: true,
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKeys(private *ecdsa.PrivateKey) (privatePEM, publicPEM []byte, err error) {
	privateDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	publicDER, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, nil, err
	}
	return encode("PRIVATE KEY", privateDER), encode("PUBLIC KEY", publicDER), nil
}

// Names of the files in the pki directory.
const (
	caCert          = "ca.crt"
	servingCert     = "apiserver.crt"
	servingKey      = "apiserver.key"
	accountKey      = "service-account.key"
	accountPublic   = "service-account.pub"
	managerConfig   = "controller-manager.kubeconfig"
	schedulerConfig = "scheduler.kubeconfig"
	auditPolicy     = "audit-policy.yaml"
)

// writePKI makes all keys and certificates and writes those that the components read
// from files. It returns the administrator's kubeconfig, which is written only once
// the control plane is ready.
func writePKI(p paths, server string) ([]byte, error) {
	if err := os.MkdirAll(p.pki(""), 0o700); err != nil {
		return nil, err
	}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	certificate, key, err := ca.serving()
	if err != nil {
		return nil, err
	}
	account, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	accountPEM, accountPublicPEM, err := encodeKeys(account)
	if err != nil {
		return nil, err
	}
	manager, err := ca.kubeconfig(managerUser, server)
	if err != nil {
		return nil, err
	}
	scheduler, err := ca.kubeconfig(schedulerUser, server)
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{
		caCert: ca.pem, servingCert: certificate, servingKey: key,
		accountKey: accountPEM, accountPublic: accountPublicPEM,
		managerConfig: manager, schedulerConfig: scheduler,
	} {
		if err := writeFile(p.pki(name), content); err != nil {
			return nil, err
		}
	}
	return ca.kubeconfig("kubernetes-admin", server)
}
