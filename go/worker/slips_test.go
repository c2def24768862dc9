package worker

import (
	"os"
	"regexp"
	"testing"
)

func TestSlipsOfThePen(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgresql://u@h/d")
	for name, meant := range map[string]string{
		"TASKGATE_SLOT": "TASKGATE_SLOTS", "TASKGATE_SLOST": "TASKGATE_SLOTS", "TASKGATE_LEASE_SECOND": "TASKGATE_LEASE_SECONDS",
		"TASKGATE_MEDIA_ALOW_FILE": "TASKGATE_MEDIA_ALLOW_FILE",
	} {
		t.Setenv(name, "")
		cfg, err := FromEnvironment()
		os.Unsetenv(name)
		if want := "unknown setting " + name + "; did you mean " + meant + "?"; err != nil || cfg.slips[name] != want {
			t.Errorf("%s: %v, %v, want %s", name, cfg.slips, err, want)
		}
	}
}

// Every setting of the Python programs, every name of Compose, and what Kubernetes sets for a service.
func TestRightAndForeignNamesAreNoSlips(t *testing.T) {
	names := []string{"TASKGATE_PORT_8000_TCP", "TASKGATE_SERVICE_HOST", "TASKGATE_SERVICE_PORT", "TASKGATE_", "SLOT"}
	for _, file := range []string{"../../src/taskgate/settings.py", "../../compose.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, regexp.MustCompile(`\bTASKGATE_[A-Z_]+\b`).FindAllString(string(text), -1)...)
	}
	if len(names) < 50 {
		t.Fatalf("only %d names", len(names))
	}
	t.Setenv("DATABASE_URL", "postgresql://u@h/d")
	for _, name := range names {
		for _, each := range []string{name, name + "_FILE"} {
			t.Setenv(each, "")
			cfg, err := FromEnvironment()
			os.Unsetenv(each)
			if err != nil || len(cfg.slips) > 0 {
				t.Errorf("%v, %v", cfg.slips, err)
			}
		}
	}
}
