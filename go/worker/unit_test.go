package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestStorable(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"b\u00e9"}`:             `{"a":"b\u00e9"}`,
		`"\u0000x"`:                   `"\ufffdx"`,
		`"\\u0000"`:                   `"\\u0000"`,
		`"\\\u0000"`:                  `"\\\ufffd"`,
		`"\ud83d\ude00"`:              `"\ud83d\ude00"`,
		`"\ud83d"`:                    `"\ufffd"`,
		`"\ude00\ud83d"`:              `"\ufffd\ufffd"`,
		`"\ud83d\ud83d\ude00"`:        `"\ufffd\ud83d\ude00"`,
		`"\ud83dx\n"`:                 `"\ufffdx\n"`,
		`"\uD83D\uDE00 \u0041 \" \/"`: `"\uD83D\uDE00 \u0041 \" \/"`,
	} {
		if have := string(storable([]byte(in))); have != want {
			t.Errorf("%s became %s, want %s", in, have, want)
		}
	}
}

func TestPlain(t *testing.T) {
	if have := plain("a\x00b\xffc"); have != "a\ufffdb\ufffdc" {
		t.Errorf("%q", have)
	}
	if have := plain(strings.Repeat("é", 3000)); len([]rune(have)) != maxErrorRunes {
		t.Errorf("%d characters", len([]rune(have)))
	}
	if have := plain(strings.Repeat("é", 2000)); strings.HasSuffix(have, "…") {
		t.Error("cut though it fits")
	}
}

func TestKeepsOrder(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: true, `1`: true, `{"a":1,"b":2}`: true, `{"b":1,"a":2}`: false, `{"aa":1,"b":2}`: false, `{"b":1,"aa":2}`: true,
		`{"a":{"y":1,"x":2}}`: false, `{"a":[{"x":1},{"y":1,"x":2}]}`: false, `[{"x":1},{"a":1}]`: true, `{"a":1,"a":2}`: false,
		`{"a":{"z":1},"b":["q","a",{"a":1}],"c":null}`: true, `{"é":1,"zz":2}`: false, `{"zz":1,"é":2}`: true,
	} {
		if keepsOrder([]byte(text)) != want {
			t.Errorf("%s: want %t", text, want)
		}
	}
}

func TestBufferBounds(t *testing.T) {
	var b buffer
	for i := range 2500 {
		b.put(settlement{verb: verbRelease, text: fmt.Sprint(i)})
	}
	b.put(settlement{verb: verbComplete, result: make([]byte, batchBytes)})
	b.put(settlement{verb: verbComplete, result: make([]byte, 10)})
	var seen []string
	for b.count() > 0 {
		v, batch := b.take()
		seen = append(seen, fmt.Sprintf("%s %d", v, len(batch)))
	}
	want := "[complete 1 complete 1 release 1000 release 1000 release 500]"
	if fmt.Sprint(seen) != want {
		t.Errorf("have %v, want %s", seen, want)
	}
}

func TestABurstOfOutcomesSharesAWrite(t *testing.T) {
	var b buffer
	b.starting.Store(true)
	b.put(settlement{})
	go func() { // the claimer, which starts tasks that end at once
		for range 1000 {
			runtime.Gosched()
		}
		for range 19 {
			b.put(settlement{})
		}
		b.starting.Store(false)
	}()
	b.gather()
	if _, batch := b.take(); len(batch) != 20 {
		t.Errorf("a write of %d outcomes, want all 20", len(batch))
	}
}

func TestAClaimWaitsOnceForSlotsThatComeFree(t *testing.T) {
	w := New(Config{Slots: 20})
	c := claimer{w: w}
	c.begun = 10
	for i, want := range []bool{true, false, true} {
		if c.gathers(5, 15) != want {
			t.Errorf("round %d: want %t", i, want)
		}
	}
	c.gathered, c.begun = false, 0
	w.link.buffer.writing.Store(10)
	if c.gathers(15, 5) {
		t.Error("it waits although most slots are free")
	}
	if !c.gathers(5, 15) {
		t.Error("it does not wait for the write under way")
	}
	c.gathered, c.begun = false, 1
	w.link.buffer.writing.Store(0)
	if c.gathers(1, 0) {
		t.Error("it waits although nothing is held that could come free")
	}
}

func TestBufferPutBackKeepsOrder(t *testing.T) {
	var b buffer
	for i := range 3 {
		b.put(settlement{verb: verbFail, text: fmt.Sprint(i)})
	}
	v, batch := b.take()
	b.put(settlement{verb: verbFail, text: "3"})
	b.putBack(v, batch[1:])
	_, rest := b.take()
	if len(rest) != 3 || rest[0].text != "1" || rest[2].text != "3" || batch[0].text != "0" {
		t.Errorf("have %v", rest)
	}
}

func TestBookCountsSlotsUntilTheEndIsConfirmed(t *testing.T) {
	b := newBook(2, 0)
	one := &attempt{task: &Task{Token: 7}}
	if !b.add(one) || b.add(&attempt{task: &Task{Token: 7}}) {
		t.Fatal("a token must be held once")
	}
	if free, held := b.free(); free != 1 || len(held) != 1 || held[0] != 7 {
		t.Fatalf("%d free, %v held", free, held)
	}
	b.remove(7)
	if free, _ := b.free(); free != 2 {
		t.Fatalf("%d free", free)
	}
}

func TestConfig(t *testing.T) {
	clear := func(t *testing.T) {
		for _, pair := range os.Environ() {
			name, _, _ := strings.Cut(pair, "=")
			if strings.HasPrefix(name, "TASKGATE_") || strings.HasPrefix(name, "OPENAI_") || strings.HasPrefix(name, "DATABASE_") {
				t.Setenv(name, "")
			}
		}
		t.Setenv("DATABASE_URL", "postgresql://u@h/d")
	}
	t.Run("defaults", func(t *testing.T) {
		clear(t)
		cfg, err := FromEnvironment()
		if err != nil || cfg.Slots != 20 || cfg.Lease != time.Minute || cfg.Timeout != 10*time.Minute || cfg.Grace != 30*time.Second ||
			cfg.Poll != 15*time.Second || cfg.Port != -1 || cfg.Schema != "public" || !cfg.InlineImages || cfg.MaxResultBytes != 10<<20 {
			t.Fatalf("%+v, %v", cfg, err)
		}
	})
	t.Run("file", func(t *testing.T) {
		clear(t)
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte("sk-1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("OPENAI_API_KEY_FILE", file)
		t.Setenv("TASKGATE_LEASE_SECONDS", "2.5")
		cfg, err := FromEnvironment()
		if err != nil || cfg.OpenAIAPIKey != "sk-1" || cfg.Lease != 2500*time.Millisecond {
			t.Fatalf("%+v, %v", cfg, err)
		}
	})
	for name, value := range map[string]string{
		"TASKGATE_SLOTS": "0", "TASKGATE_LEASE_SECONDS": "nan", "TASKGATE_IMAGES": "maybe", "TASKGATE_WORKER_PORT": "70000",
		"TASKGATE_DATABASE_POOLER": "perhaps", "DATABASE_URL": "mysql://x", "TASKGATE_SCHEMA": "Bad;", "OPENAI_API_KEY_FILE": "/nowhere/key",
	} {
		t.Run(name, func(t *testing.T) {
			clear(t)
			t.Setenv(name, value)
			_, err := FromEnvironment()
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Fatalf("have %v, want an error that names %s", err, name)
			}
		})
	}
}

func TestHandleRefusesWrongNames(t *testing.T) {
	w := New(Config{Slots: 1, Lease: time.Minute})
	w.Handle("a.b-c_1", nil)
	for _, name := range []string{"", "A", "-a", "a b", "ü", strings.Repeat("a", 101), "a.b-c_1"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was taken", name)
				}
			}()
			w.Handle(name, nil)
		}()
	}
}

func TestLogLines(t *testing.T) {
	var out bytes.Buffer
	NewLogger(&out, "json", "info").Warn("task_failed", "task_id", "a", "seconds", 0.5)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line["event"] != "task_failed" || line["level"] != "warning" || line["task_id"] != "a" || line["seconds"] != 0.5 {
		t.Errorf("%s", out.String())
	}
	if _, err := time.Parse(time.RFC3339Nano, line["timestamp"].(string)); err != nil {
		t.Error(err)
	}
}

func TestLeaseClockRunsForward(t *testing.T) {
	before := now()
	time.Sleep(20 * time.Millisecond)
	if took := now() - before; took < 20*time.Millisecond {
		t.Errorf("%s passed", took)
	}
}

func TestSecondsOfAnyRow(t *testing.T) {
	century := 100 * 366 * 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"1.5": 1500 * time.Millisecond, "-2": -2 * time.Second, "NaN": 0, "Infinity": century, "-Infinity": -century, "1e300": century, "1e400": century,
	} {
		if have, err := seconds([]byte(text)); err != nil || have != want {
			t.Errorf("%s: %v, %v", text, have, err)
		}
	}
	if _, err := seconds([]byte("soon")); err == nil {
		t.Error("no error")
	}
}

func TestSnoozesHaveAFloor(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{0: minSnooze, time.Millisecond: minSnooze, time.Minute: time.Minute} {
		var s settlement
		if s.steer(Snooze(after, "later")); s.verb != verbRelease || *s.delay != want {
			t.Errorf("%v: %+v", after, s)
		}
	}
	var s settlement
	if s.steer(Throttled(-1, "later")); s.verb != verbFail || !s.retry || s.delay != nil {
		t.Errorf("%+v", s)
	}
	if s.steer(Retry("again").WithAfter(-1)); s.verb != verbFail || s.delay != nil {
		t.Errorf("%+v", s)
	}
}

func TestACollectionIsRareWhileTheHeapIsSmall(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 1 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes live: %d percent, not %d", live, got, want)
		}
	}
}
