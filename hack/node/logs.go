package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// serve answers what the API server asks a kubelet for: logs of containers. It returns the port. The API server of a test
// does not look who we are, and anybody of this machine may ask.
func (n *node) serve() (int, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return 0, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return 0, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.logs)
	go func() { _ = http.Serve(tls.NewListener(listener, config), mux) }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// find is a container that is known by names.
func (n *node) find(namespace, pod, container string) *container {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, one := range n.pods {
		if one.object.Namespace != namespace || one.object.Name != pod {
			continue
		}
		for _, here := range one.containers {
			if here.spec.Name == container {
				return here
			}
		}
	}
	return nil
}

func (n *node) logs(answer http.ResponseWriter, request *http.Request) {
	name, query := request.PathValue("pod"), request.URL.Query()
	c := n.find(request.PathValue("namespace"), name, request.PathValue("container"))
	if c == nil {
		http.Error(answer, fmt.Sprintf("pod %q not found", name), http.StatusNotFound)
		return
	}
	isPrevious := query.Get("previous") == "true"
	c.mutex.Lock()
	state, last, run := c.state, c.last, c.restarts
	c.mutex.Unlock()
	if isPrevious || state.Waiting != nil {
		run--
	}
	switch {
	case isPrevious && last.Terminated == nil:
		http.Error(answer, fmt.Sprintf("previous terminated container %q in pod %q not found", c.spec.Name, name), http.StatusBadRequest)
		return
	case state.Waiting != nil && last.Terminated == nil:
		http.Error(answer, fmt.Sprintf("container %q in pod %q is waiting to start: %s", c.spec.Name, name, state.Waiting.Reason), http.StatusBadRequest)
		return
	}
	file, err := os.Open(c.log(run))
	if err != nil {
		http.Error(answer, err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	answer.Header().Set("Content-Type", "text/plain")
	answer.WriteHeader(http.StatusOK)
	said := newLines(query.Get)
	isOver := func() bool {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		return c.process == nil || c.restarts != run
	}
	for follows := query.Get("follow") == "true"; ; time.Sleep(100 * time.Millisecond) {
		over := !follows || isOver()
		text, err := io.ReadAll(file)
		if err != nil {
			return
		}
		if _, err := answer.Write(said.of(text)); err != nil || said.full || over || request.Context().Err() != nil {
			return
		}
		answer.(http.Flusher).Flush()
	}
}

// lines are what a log is asked for.
type lines struct {
	since time.Time
	times bool
	tail  int // -1 for all
	left  int // bytes, -1 for all
	rest  []byte
	full  bool
	// isOpen is whether the last part was of a line that goes on
	isOpen bool
}

func newLines(asked func(string) string) *lines {
	number := func(name string) int {
		if count, err := strconv.Atoi(asked(name)); err == nil {
			return count
		}
		return -1
	}
	l := &lines{times: asked("timestamps") == "true", tail: number("tailLines"), left: number("limitBytes")}
	l.since, _ = time.Parse(time.RFC3339Nano, asked("sinceTime"))
	if seconds := number("sinceSeconds"); seconds >= 0 {
		l.since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	return l
}

// of is what is told of more of the log's file. What is not yet a line waits for its end.
func (l *lines) of(text []byte) []byte {
	text = append(l.rest, text...)
	end := bytes.LastIndexByte(text, '\n') + 1
	text, l.rest = text[:end], bytes.Clone(text[end:])
	var told [][]byte
	for line := range bytes.Lines(text) {
		fields := bytes.SplitN(line, []byte(" "), 4)
		at, err := time.Parse(time.RFC3339Nano, string(fields[0]))
		if len(fields) < 4 || err != nil || at.Before(l.since) {
			continue
		}
		said := fields[3]
		isRest := l.isOpen
		if l.isOpen = string(fields[2]) == "P"; l.isOpen {
			said = bytes.TrimSuffix(said, []byte("\n"))
		}
		if isRest && len(told) > 0 {
			told[len(told)-1] = append(told[len(told)-1], said...)
			continue
		}
		if l.times && !isRest {
			said = append([]byte(at.Format("2006-01-02T15:04:05.000000000Z07:00")+" "), said...)
		}
		told = append(told, bytes.Clone(said))
	}
	if l.tail >= 0 {
		told = told[max(len(told)-l.tail, 0):]
		l.tail = -1
	}
	all := bytes.Join(told, nil)
	if l.left >= 0 {
		all = all[:min(len(all), l.left)]
		l.left -= len(all)
		l.full = l.left == 0
	}
	return all
}

// tail is the end of a log, without times.
func tail(path string, most, size int) []byte {
	text, _ := os.ReadFile(path)
	all := newLines(func(name string) string {
		if name == "tailLines" {
			return strconv.Itoa(most)
		}
		return ""
	}).of(text)
	return []byte(strings.TrimRight(string(all[max(len(all)-size, 0):]), "\n"))
}
