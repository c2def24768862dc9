// Package cutproxy is a TCP proxy for tests that can swallow everything both ways, without a reset: what a cut
// network looks like.
package cutproxy

import (
	"encoding/binary"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy forwards to one address.
type Proxy struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	cut      bool
	changed  *sync.Cond
	loses    *loss
}

// loss is a round trip whose answers do not all arrive.
type loss struct{ arrive, come int }

// New starts a proxy in front of the server of a database URL, and answers it with the URL that goes through it.
func New(t testing.TB, dsn string) (*Proxy, string) {
	t.Helper()
	target, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener}
	p.changed = sync.NewCond(&p.mu)
	go p.serve(target.Host)
	t.Cleanup(p.close)
	target.Host = listener.Addr().String()
	return p, target.String()
}

// Cut swallows everything from now on; new connections are accepted and hear nothing.
func (p *Proxy) Cut() { p.set(true) }

// Heal forwards again. What was swallowed arrives late, as on a network that was slow.
func (p *Proxy) Heal() { p.set(false) }

// Lose lets the server do all of the next pipeline, forwards its first answers and loses the others with the
// connection. An answer ends with a ReadyForQuery; the connection must be idle now.
func (p *Proxy) Lose(arrive, come int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = &loss{arrive, come}
}

// Drop closes every connection.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

func (p *Proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	p.changed.Broadcast()
}

func (p *Proxy) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.cut {
		p.changed.Wait()
	}
}

func (p *Proxy) serve(address string) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			p.wait()
			server, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			go p.pump(client, server, nil)
			go p.pump(server, client, p.arriving())
		}()
	}
}

func (p *Proxy) pump(from, to net.Conn, arriving func([]byte) ([]byte, bool)) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.wait()
		data, over := buffer[:n], false
		if arriving != nil {
			data, over = arriving(data)
		}
		if len(data) > 0 {
			if _, err := to.Write(data); err != nil {
				return
			}
		}
		if err != nil || over {
			return
		}
	}
}

func (p *Proxy) close() {
	p.set(false)
	_ = p.listener.Close()
	p.Drop()
}

// arriving is what arrives of the server's data, and whether that was the last.
func (p *Proxy) arriving() func([]byte) ([]byte, bool) {
	var left []byte // of a message that is not whole
	return func(data []byte) ([]byte, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.loses == nil {
			return data, false
		}
		left = append(left, data...)
		var arrived []byte
		for len(left) >= 5 {
			size := 1 + int(binary.BigEndian.Uint32(left[1:]))
			if len(left) < size {
				break
			}
			if p.loses.arrive > 0 {
				arrived = append(arrived, left[:size]...)
			}
			if left[0] == 'Z' {
				p.loses.arrive--
				p.loses.come--
			}
			left = left[size:]
			if p.loses.come == 0 {
				p.loses = nil
				return arrived, true
			}
		}
		return arrived, false
	}
}
