// Program registry serves a real OCI registry (github.com/distribution/distribution) on loopback, for tests.
//
// It prints one line, "host:port" (with -login token "host:port host:port", the second one its token server), and ends
// when its standard input does, so that nothing is left over when its caller is killed.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"
)

type options struct {
	dir, address, cert, key, clientCA, login, user, password string
	notify, authorization                                    string
	maxTags                                                  int
	lifetime                                                 time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "where everything is stored")
	flag.StringVar(&o.address, "address", "127.0.0.1:0", "where it listens; port 0 is any free one")
	flag.StringVar(&o.cert, "cert", "", "certificate (PEM), for https")
	flag.StringVar(&o.key, "key", "", "its key")
	flag.StringVar(&o.clientCA, "client-ca", "", "authority that must have signed each client's certificate")
	flag.StringVar(&o.login, "login", "none", "none, basic or token")
	flag.StringVar(&o.user, "user", "", "who may log in; with -login token everybody may pull, and this user push")
	flag.StringVar(&o.password, "password", "", "with this password")
	flag.StringVar(&o.notify, "notify", "", "URL that is told of every push")
	flag.StringVar(&o.authorization, "notify-authorization", "", "with this header Authorization")
	flag.IntVar(&o.maxTags, "max-tags", 0, "most tags of one page")
	flag.DurationVar(&o.lifetime, "token-lifetime", 5*time.Minute, "how long a token is valid")
	flag.Parse()
	if o.dir == "" || flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(o.serve())
}

func (o *options) serve() error {
	logrus.SetLevel(logrus.WarnLevel)
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return err
	}
	config := &configuration.Configuration{
		Version: "0.1",
		Storage: configuration.Storage{
			"filesystem": configuration.Parameters{"rootdirectory": o.dir},
			"delete":     configuration.Parameters{"enabled": true},
		},
	}
	config.HTTP.Addr = listener.Addr().String()
	config.HTTP.Secret = "of nobody's concern"
	config.Tags.MaxTags = o.maxTags
	config.Catalog.MaxEntries = 100
	if o.notify != "" {
		config.Notifications.Endpoints = []configuration.Endpoint{{
			Name: "receiver", URL: o.notify, Headers: http.Header{"Authorization": {o.authorization}},
			Timeout: 10 * time.Second, Threshold: 3, Backoff: time.Second,
		}}
	}
	line := listener.Addr().String()
	switch o.login {
	case "none":
	case "basic":
		path, err := o.htpasswd()
		if err != nil {
			return err
		}
		config.Auth = configuration.Auth{"htpasswd": {"realm": "registry", "path": path}}
	case "token":
		tokens, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		issuer, jwks, err := o.issuer()
		if err != nil {
			return err
		}
		config.Auth = configuration.Auth{"token": {
			"realm": fmt.Sprintf("%s://%s/token", o.scheme(), tokens.Addr()), "issuer": "registry", "service": "registry", "jwks": jwks,
		}}
		line += " " + tokens.Addr().String()
		go func() { log.Fatal(o.listen(tokens, issuer)) }()
	default:
		return fmt.Errorf("-login %q is none of none, basic and token", o.login)
	}
	app := handlers.NewApp(context.Background(), config)
	fmt.Println(line)
	return o.listen(listener, app)
}

func (o *options) scheme() string {
	if o.cert == "" {
		return "http"
	}
	return "https"
}

func (o *options) listen(listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	if o.cert == "" {
		return server.Serve(listener)
	}
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.clientCA != "" {
		pem, err := os.ReadFile(o.clientCA)
		if err != nil {
			return err
		}
		server.TLSConfig.ClientCAs = x509.NewCertPool()
		if !server.TLSConfig.ClientCAs.AppendCertsFromPEM(pem) {
			return errors.New("-client-ca holds no certificate")
		}
		server.TLSConfig.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return server.ServeTLS(listener, o.cert, o.key)
}

func (o *options) htpasswd() (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(o.password), bcrypt.MinCost)
	if err != nil {
		return "", err
	}
	path := filepath.Join(o.dir, "htpasswd")
	return path, os.WriteFile(path, fmt.Appendf(nil, "%s:%s\n", o.user, hash), 0o600)
}

// issuer is a token server as the distribution project describes it, and the file with its public key.
func (o *options) issuer() (http.Handler, string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", err
	}
	const id = "key"
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: id, Algorithm: string(jose.ES256), Use: "sig"}}}
	text, err := json.Marshal(set)
	if err != nil {
		return nil, "", err
	}
	path := filepath.Join(o.dir, "jwks.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, "", err
	}
	signing := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}
	signer, err := jose.NewSigner(signing, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, "", err
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		user, password, given := r.BasicAuth()
		if given && (user != o.user || password != o.password) {
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"incorrect username or password"}]}`, http.StatusUnauthorized)
			return
		}
		now := time.Now()
		claims := token.ClaimSet{
			Issuer: "registry", Subject: user, Audience: token.AudienceList{r.URL.Query().Get("service")},
			// The registry allows a minute more than that.
			Expiration: now.Add(o.lifetime).Unix(), NotBefore: now.Add(-time.Minute).Unix(), IssuedAt: now.Unix(),
			Access: granted(r.URL.Query()["scope"], given),
		}
		signed, err := jwt.Signed(signer).Claims(claims).Serialize()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"token": signed, "expires_in": int(o.lifetime.Seconds()), "issued_at": now})
	}
	return http.HandlerFunc(handler), path, nil
}

func granted(scopes []string, user bool) []*token.ResourceActions {
	var access []*token.ResourceActions
	for _, scope := range strings.Fields(strings.Join(scopes, " ")) {
		kind, rest, _ := strings.Cut(scope, ":")
		name, actions, _ := strings.Cut(rest, ":")
		var may []string
		for _, action := range strings.Split(actions, ",") {
			private := strings.HasPrefix(name, "private/")
			if user || action == "pull" && !private {
				may = append(may, action)
			}
		}
		access = append(access, &token.ResourceActions{Type: kind, Name: name, Actions: may})
	}
	return access
}
