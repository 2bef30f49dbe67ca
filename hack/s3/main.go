// Program s3 serves a real S3 gateway (github.com/versity/versitygw) over a directory on loopback, for tests.
//
// It prints one line, "host:port", and ends when its standard input does, so that nothing is left over when its caller is
// killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3response"
)

type options struct {
	dir, bucket, access, secret, region string
	copyLimit                           int64
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "where everything is stored")
	flag.StringVar(&o.bucket, "bucket", "images", "bucket that is there")
	flag.StringVar(&o.access, "access", "", "access key")
	flag.StringVar(&o.secret, "secret", "", "its secret")
	flag.StringVar(&o.region, "region", "us-east-1", "region")
	flag.Int64Var(&o.copyLimit, "copy-limit", 5<<30, "bytes that one request copies at most, as AWS has it for 5 GiB")
	flag.Parse()
	if o.dir == "" || o.access == "" || o.secret == "" || flag.NArg() != 0 {
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
	data, side := filepath.Join(o.dir, "data"), filepath.Join(o.dir, "metadata")
	for _, directory := range []string{filepath.Join(data, o.bucket), side} {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return err
		}
	}
	// Others say this and that on the output: the one line goes to what it was.
	output := os.Stdout
	os.Stdout = os.Stderr
	attributes, err := meta.NewSideCar(side)
	if err != nil {
		return err
	}
	files, err := posix.New(data, attributes, posix.PosixOpts{SideCarDir: side, CopyObjectThreshold: o.copyLimit})
	if err != nil {
		return err
	}
	account := auth.Account{Access: o.access, Secret: o.secret, Role: auth.RoleAdmin}
	root := middlewares.RootUserConfig{Access: o.access, Secret: o.secret}
	// It wants an address and tells none, so that a free port is looked for first.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	told := s3api.WithOnListen(func() { fmt.Fprintln(output, address) })
	server, err := s3api.New(&atomic{Posix: files}, root, o.region, auth.NewIAMServiceSingle(account), nil, nil, nil, nil,
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(1000, 1000), told)
	if err != nil {
		return err
	}
	return server.ServeMultiPort([]string{address})
}

// atomic checks a condition and writes what hangs on it in one, and reads an entity tag with what it is of, as AWS does. The
// POSIX backend alone does the one and then the other: of two writers with one If-Match both are told that they won.
type atomic struct {
	*posix.Posix
	content sync.RWMutex
}

func (a *atomic) HeadObject(ctx context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	a.content.RLock()
	defer a.content.RUnlock()
	return a.Posix.HeadObject(ctx, in)
}

func (a *atomic) GetObject(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	a.content.RLock()
	defer a.content.RUnlock()
	return a.Posix.GetObject(ctx, in)
}

func (a *atomic) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	a.content.Lock()
	defer a.content.Unlock()
	return a.Posix.PutObject(ctx, in)
}

func (a *atomic) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	a.content.Lock()
	defer a.content.Unlock()
	return a.Posix.DeleteObject(ctx, in)
}

func (a *atomic) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	a.content.Lock()
	defer a.content.Unlock()
	return a.Posix.CompleteMultipartUpload(ctx, in)
}
